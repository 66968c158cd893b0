"""Models without their library: made as plain data, read, and what they decline."""

# Pickles name the classes here, where they were defined before.
from skforge.sources.stored_model.model import StoredModel as StoredModel
from skforge.sources.stored_model.model import StoredRules as StoredRules
