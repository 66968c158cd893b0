from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from work import Work, X, forest, y

line = make_pipeline(StandardScaler(), forest())
grid = {"randomforestclassifier__n_estimators": [50, 100]}
work = Work()
search = GridSearchCV(line, grid, cv=3).fit(X[:1000], y[:1000])
work.calls(search.predict_proba, X, 900, 40)
work.end()
