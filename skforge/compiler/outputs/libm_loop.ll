; One scalar call per element; it must not be replaced by a vector version.
declare ${type} @skforge_${name}(${type})

define void @loop_${name}(ptr %out, ptr %in, i64 %n) nounwind {
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %body, label %done
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %from = getelementptr ${type}, ptr %in, i64 %i
  %x = load ${type}, ptr %from
  %y = call ${type} @skforge_${name}(${type} %x)
  %to = getelementptr ${type}, ptr %out, i64 %i
  store ${type} %y, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %body, label %done
done:
  ret void
}
