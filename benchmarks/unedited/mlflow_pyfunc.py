import sys

import mlflow
from work import Work, frame

served = mlflow.pyfunc.load_model("model")
work = Work()
work.calls(served.predict, frame, 400, int(sys.argv[1]))
work.end()
