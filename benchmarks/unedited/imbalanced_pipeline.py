from imblearn.ensemble import BalancedRandomForestClassifier
from imblearn.over_sampling import SMOTE
from imblearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from work import Work, X, forest, y

line = make_pipeline(StandardScaler(), SMOTE(random_state=0), forest())
balanced = BalancedRandomForestClassifier(random_state=0)
work = Work()
for model in (line, balanced):
    work.calls(model.fit(X[:1500], y[:1500]).predict_proba, X, 300, 40)
work.end()
