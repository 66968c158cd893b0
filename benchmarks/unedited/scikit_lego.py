from sklego.meta import GroupedPredictor, Thresholder
from work import Work, X, forest, frame, y

grouped = GroupedPredictor(forest(30), groups=["group"])
table = frame.assign(group=(X[:, 0] > 0).astype(int))
work = Work()
work.calls(grouped.fit(table[:1500], y[:1500]).predict, table, 200, 60)
work.calls(Thresholder(forest(), 0.3).fit(X[:1500], y[:1500]).predict, X, 300, 40)
work.end()
