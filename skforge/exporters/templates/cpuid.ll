define hidden void @${name}.cpuid(i32 %leaf, i32 %part, ptr %words) nounwind {
  %r = call { i32, i32, i32, i32 } asm sideeffect "cpuid", "={ax},={bx},={cx},={dx},0,2,~{dirflag},~{fpsr},~{flags}"(i32 %leaf, i32 %part)
  store { i32, i32, i32, i32 } %r, ptr %words
  ret void
}
define hidden i64 @${name}.saved() nounwind {
  %x = call { i32, i32 } asm sideeffect "xgetbv", "={ax},={dx},{cx},~{dirflag},~{fpsr},~{flags}"(i32 0)
  %x.a = extractvalue { i32, i32 } %x, 0
  %saved = zext i32 %x.a to i64
  ret i64 %saved
}
