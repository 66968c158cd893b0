from pathlib import Path

import papermill

file = Path(__file__).with_suffix(".ipynb")
done = papermill.execute_notebook(file, "done.ipynb", progress_bar=False)
print(done["cells"][-1]["outputs"][0]["text"], end="")
