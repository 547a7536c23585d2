// Fibers: a stack of one's own and a switch between two of them.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && !defined(HOST_CUDA_UCONTEXT)

namespace host_cuda {

using Context = void*;  // the stack pointer; callee-saved registers lie on the stack

extern "C" void host_cuda_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.weak host_cuda_switch
.hidden host_cuda_switch
.type host_cuda_switch, @function
host_cuda_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size host_cuda_switch, .-host_cuda_switch
)");

inline void switch_context(Context* from, Context& to) { host_cuda_switch(from, to); }

struct Fiber {
  Context context = nullptr;
  void prepare(uint8_t* stack, size_t bytes, void (*entry)()) {
    auto* top = reinterpret_cast<uint64_t*>(stack + bytes) - 1;
    *top = 0;                                    // entry's return address: it never returns
    *--top = reinterpret_cast<uint64_t>(entry);  // where the first switch goes
    context = top - 6;
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
