; Calls kernel(calls + i * stride, pfor, threads) for i in 0..n_calls, `rounds` times,
; and stores the seconds and nanoseconds before and after, in zeroed memory: Windows'
; clock writes 4 bytes of nanoseconds. The arguments of its calls depend on the system.
define void @skforge_time_calls(
    ptr %kernel, ptr %calls, i64 %stride, i64 %n_calls, i64 %rounds,
    ptr %pfor, i64 %threads, ptr %gettime, i32 %clock, ptr %times) {
entry:
  %end = getelementptr i8, ptr %times, i64 16
  %r0 = call i32 %gettime($before)
  br label %round
round:
  %r = phi i64 [ 0, %entry ], [ %r.next, %round.end ]
  br label %call
call:
  %i = phi i64 [ 0, %round ], [ %i.next, %call ]
  %offset = mul i64 %i, %stride
  %slots = getelementptr i8, ptr %calls, i64 %offset
  call void %kernel(ptr %slots, ptr %pfor, i64 %threads)
  %i.next = add i64 %i, 1
  %i.more = icmp slt i64 %i.next, %n_calls
  br i1 %i.more, label %call, label %round.end
round.end:
  %r.next = add i64 %r, 1
  %r.more = icmp slt i64 %r.next, %rounds
  br i1 %r.more, label %round, label %done
done:
  %r1 = call i32 %gettime($after)
  ret void
}
