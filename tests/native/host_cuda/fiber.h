// Fibers: a stack of one's own and a switch between two of them.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && !defined(HOST_CUDA_UCONTEXT)

namespace host_cuda {

using Context = void*;  // the stack pointer; the frame pointer and where to go on lie on the stack

// Without a call: the processor foretells the returns of a fiber by those of the lanes before it, which called from the
// same places. Below the stack pointer lies the red zone. What else a fiber has in registers the compiler saves.
__attribute__((always_inline)) inline void switch_context(Context* from, const Context& to) {
  Context next = to;
  asm volatile(R"(
  leaq -128(%%rsp), %%rsp
  pushq %%rbp
  leaq 1f(%%rip), %%rax
  pushq %%rax
  movq %%rsp, (%%rdi)
  movq %%rsi, %%rsp
  popq %%rax
  popq %%rbp
  jmpq *%%rax
1:
  leaq 128(%%rsp), %%rsp
)"
               : "+D"(from), "+S"(next)
               :
               : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
                 "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                 "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
}

struct Fiber {
  Context context = nullptr;
  void prepare(uint8_t* stack, size_t bytes, void (*entry)()) {
    auto* top = reinterpret_cast<uint64_t*>(stack + bytes) - 1;
    *top = 0;                                    // entry's return address: it never returns
    *--top = 0;                                  // its frame pointer
    *--top = reinterpret_cast<uint64_t>(entry);  // where the first switch goes
    context = top;
  }
  void prefetch() const {
    for (int line = 0; line < 4; line++)
      __builtin_prefetch(static_cast<const uint8_t*>(context) + 64 * line);
  }
};

}  // namespace host_cuda

#else
#include <ucontext.h>

namespace host_cuda {

using Context = ucontext_t;
inline void switch_context(Context* from, Context& to) { swapcontext(from, &to); }

struct Fiber {
  Context context{};
  void prepare(uint8_t* stack, size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack, context.uc_stack.ss_size = bytes;
    makecontext(&context, entry, 0);
  }
  void prefetch() const {}
};

}  // namespace host_cuda
#endif
