; A hash of the thread: stacks lie a megabyte apart at least.
define internal i64 @"skforge.home"() nounwind {
  %here = alloca i8
  %address = ptrtoint ptr %here to i64
  %stack = lshr i64 %address, 20
  %mixed = mul i64 %stack, -7046029254386353131
  %home = lshr i64 %mixed, ${shift}
  ret i64 %home
}

; The beginning of both functions that look for a slot: at the thread's own.
start:
  %home = call i64 @"skforge.home"()
  br label %look
look:
  %k = phi i64 [ 0, %start ], [ %next, %on ]
  %sum = add i64 %home, %k
  %slot = and i64 %sum, ${last}
  %at = getelementptr inbounds [${kept} x ptr], ptr ${slots}, i64 0, i64 %slot

${slots} = internal global [${kept} x ptr] zeroinitializer

; Takes a kept block, first of all the thread's own, or allocates one.
define internal ptr ${take}() nounwind noinline {
${look}
  %seen = load atomic ptr, ptr %at monotonic, align 8
  %some = icmp ne ptr %seen, null
  br i1 %some, label %take, label %on
take:
  %block = atomicrmw xchg ptr %at, ptr null acquire
  %taken = icmp ne ptr %block, null
  br i1 %taken, label %found, label %on
found:
  ret ptr %block
on:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, ${kept}
  br i1 %more, label %look, label %allocate
allocate:
  %new = call ptr @aligned_alloc(i64 64, i64 ${size})
  ret ptr %new
}

; Keeps a block in the first empty slot from the thread's own on, or frees it.
define internal void ${give}(ptr %block) nounwind noinline {
${look}
  %swap = cmpxchg ptr %at, ptr null, ptr %block release monotonic
  %kept = extractvalue { ptr, i1 } %swap, 1
  br i1 %kept, label %done, label %on
on:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, ${kept}
  br i1 %more, label %look, label %full
full:
  call void @free(ptr %block)
  br label %done
done:
  ret void
}

; Frees the kept blocks.
define internal void ${empty}() nounwind noinline {
start:
  br label %next
next:
  %k = phi i64 [ 0, %start ], [ %after, %next ]
  %at = getelementptr inbounds [${kept} x ptr], ptr ${slots}, i64 0, i64 %k
  %block = atomicrmw xchg ptr %at, ptr null seq_cst
  call void @free(ptr %block)
  %after = add i64 %k, 1
  %more = icmp ult i64 %after, ${kept}
  br i1 %more, label %next, label %done
done:
  ret void
}
