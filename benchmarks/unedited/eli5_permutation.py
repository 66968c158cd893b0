from eli5 import explain_weights_df
from eli5.sklearn import PermutationImportance
from work import Work, X, forest, y

model = forest().fit(X[:1500], y[:1500])
work = Work()
shuffled = PermutationImportance(model, random_state=0).fit(X[1500:4500], y[1500:4500])
work.keep(shuffled.feature_importances_, explain_weights_df(shuffled).weight)
work.end()
