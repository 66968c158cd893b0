from sklearn.model_selection import cross_val_predict
from work import Work, X, forest, y

work = Work()
work.keep(cross_val_predict(forest(), X[:1500], y[:1500], method="predict_proba"))
work.end()
