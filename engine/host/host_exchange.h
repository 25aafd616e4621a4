// host_exchange.h - the device's side of the exchange with host cores (Kernels::ask_host, take_answer) where the device
// is the host itself.
#pragma once
#include "engine/device/kernels.h"
#include "engine/host/math.h"

namespace genai {

void run_ask_host(const AskHostArgs& args, const HostMath& math);
// Waits without rest: the answer is a fraction of a millisecond away.
void run_take_answer(const TakeAnswerArgs& args);

}  // namespace genai
