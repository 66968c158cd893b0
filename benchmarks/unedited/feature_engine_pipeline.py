from feature_engine.discretisation import EqualFrequencyDiscretiser
from feature_engine.imputation import MeanMedianImputer
from feature_engine.outliers import Winsorizer
from sklearn.pipeline import make_pipeline
from work import Work, forest, frame, y

line = make_pipeline(
    MeanMedianImputer(), Winsorizer(), EqualFrequencyDiscretiser(q=50), forest()
)
work = Work()
work.calls(line.fit(frame[:1500], y[:1500]).predict_proba, frame, 300, 40)
work.end()
