@${name}.kind = internal global i32 0
declare void @${name}.cpuid(i32, i32, ptr)
declare i64 @${name}.saved()
declare float @${name}.fast.expf(float)
declare float @${name}.slow.expf(float)
declare double @${name}.fast.exp(double)
declare double @${name}.slow.exp(double)
; Whether this CPU multiplies and adds in one step, asked once.
define internal i1 @${name}.fuses() nounwind noinline {
  %known = load atomic i32, ptr @${name}.kind monotonic, align 4
  %asked = icmp ne i32 %known, 0
  br i1 %asked, label %told, label %ask
told:
  %fuses = icmp eq i32 %known, 2
  ret i1 %fuses
ask:
  %words = alloca [4 x i32]
  call void @${name}.cpuid(i32 1, i32 0, ptr %words)
  %at = getelementptr i32, ptr %words, i64 2
  %c = load i32, ptr %at
  %bits = and i32 %c, 402657280  ; fma, osxsave, avx
  %has = icmp eq i32 %bits, 402657280
  br i1 %has, label %state, label %tell
state:
  %saved = call i64 @${name}.saved()
  %vectors = and i64 %saved, 6
  %kept = icmp eq i64 %vectors, 6
  br label %tell
tell:
  %result = phi i1 [ false, %ask ], [ %kept, %state ]
  %kind = select i1 %result, i32 2, i32 1
  store atomic i32 %kind, ptr @${name}.kind monotonic, align 4
  ret i1 %result
}
define hidden float @expf(float %x) nounwind {
  %fuses = call i1 @${name}.fuses()
  br i1 %fuses, label %fast, label %slow
fast:
  %quick = call float @${name}.fast.expf(float %x)
  ret float %quick
slow:
  %result = call float @${name}.slow.expf(float %x)
  ret float %result
}
define hidden double @exp(double %x) nounwind {
  %fuses = call i1 @${name}.fuses()
  br i1 %fuses, label %fast, label %slow
fast:
  %quick = call double @${name}.fast.exp(double %x)
  ret double %quick
slow:
  %result = call double @${name}.slow.exp(double %x)
  ret double %result
}
; a * b + c, rounded once, without an instruction for it: Boldo and Melquiond, "Emulation
; of a FMA and Correctly Rounded Sums", 2008. The products are exact by Veltkamp's and
; Dekker's halves; the last sum but one is rounded to odd.
define hidden double @${name}.fma(double %a, double %b, double %c) nounwind {
  %a.wide = fmul double %a, 134217729.0
  %a.less = fsub double %a.wide, %a
  %a.high = fsub double %a.wide, %a.less
  %a.low = fsub double %a, %a.high
  %b.wide = fmul double %b, 134217729.0
  %b.less = fsub double %b.wide, %b
  %b.high = fsub double %b.wide, %b.less
  %b.low = fsub double %b, %b.high
  %u = fmul double %a, %b
  %hh = fmul double %a.high, %b.high
  %hl = fmul double %a.high, %b.low
  %lh = fmul double %a.low, %b.high
  %ll = fmul double %a.low, %b.low
  %e1 = fsub double %hh, %u
  %e2 = fadd double %e1, %hl
  %e3 = fadd double %e2, %lh
  %u.low = fadd double %e3, %ll
  %t = call {double, double} @${name}.sum(double %c, double %u.low)
  %t.high = extractvalue {double, double} %t, 0
  %t.low = extractvalue {double, double} %t, 1
  %v = call {double, double} @${name}.sum(double %u, double %t.high)
  %v.high = extractvalue {double, double} %v, 0
  %v.low = extractvalue {double, double} %v, 1
  %z = call {double, double} @${name}.sum(double %t.low, double %v.low)
  %z.high = extractvalue {double, double} %z, 0
  %z.low = extractvalue {double, double} %z, 1
  %z.bits = bitcast double %z.high to i64
  %e.bits = bitcast double %z.low to i64
  %signs = xor i64 %z.bits, %e.bits
  %same = icmp sge i64 %signs, 0
  %step = select i1 %same, i64 1, i64 -1
  %odd.bits = add i64 %z.bits, %step
  %odd = bitcast i64 %odd.bits to double
  %exact = fcmp ueq double %z.low, 0.0
  %last = and i64 %z.bits, 1
  %is.odd = icmp ne i64 %last, 0
  %stays = or i1 %exact, %is.odd
  %rest = select i1 %stays, double %z.high, double %odd
  %result = fadd double %v.high, %rest
  ret double %result
}
; The rounded sum and its error, by Knuth.
define internal {double, double} @${name}.sum(double %a, double %b) nounwind {
  %s = fadd double %a, %b
  %b.kept = fsub double %s, %a
  %a.kept = fsub double %s, %b.kept
  %a.lost = fsub double %a, %a.kept
  %b.lost = fsub double %b, %b.kept
  %e = fadd double %a.lost, %b.lost
  %first = insertvalue {double, double} undef, double %s, 0
  %both = insertvalue {double, double} %first, double %e, 1
  ret {double, double} %both
}
