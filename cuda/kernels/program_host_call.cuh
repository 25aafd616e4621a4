// program_host_call.cuh - calls around a product by which host cores compute the rows behind its own, as a program is
// told of them (program_host.cuh).
#pragma once
#include <algorithm>

#include "cuda/kernels/program.cuh"

namespace genai::cuda {

struct HostCall {
  const AskHostArgs* ask = nullptr;  // null: there are none
  const TakeAnswerArgs* answer = nullptr;

  // What is asked is the input of `args`, and what is answered are rows behind those of its outputs.
  bool goes_with(const MatmulArgs& args) const {
    const bool same_input = ask->quantize && ask->row_count == 1 && ask->input == args.input &&
                            ask->width == args.outputs[0].matrix.cols && ask->norm_weight == args.norm_weight &&
                            (!ask->norm_weight || ask->norm_epsilon == args.norm_epsilon);
    const bool same_request =
        answer->row_count == 1 && answer->number == ask->number && answer->finished == ask->finished;
    const auto known = std::count_if(args.outputs, args.outputs + args.output_count, [&](const MatmulOutput& output) {
      return answer_behind(output, args.epilogue) != nullptr;
    });
    return same_input && same_request && known == answer->output_count &&
           answer->add == (args.epilogue == Epilogue::add);
  }

  // Of the vector that begins with `output`.
  int whole_width(const MatmulOutput& output, Epilogue epilogue) const {
    const TakeAnswerArgs::Output* const rest = answer_behind(output, epilogue);
    return output_width(output, epilogue) + (rest != nullptr ? rest->width : 0);
  }

  ProgramHost place() const {
    return {reinterpret_cast<ExchangeWord*>(ask->request.address()),
            reinterpret_cast<const std::uint32_t*>(ask->finished.address())};
  }

  ProgramHostRows rows_of(const MatmulArgs& args) const {
    ProgramHostRows rows = {ask->number, ask->job, {}};
    for (int i = 0; i < args.output_count; ++i)
      if (const TakeAnswerArgs::Output* const rest = answer_behind(args.outputs[i], args.epilogue))
        rows.answers[i] = {reinterpret_cast<const ExchangeWord*>(rest->result.address()), rest->width};
    return rows;
  }

 private:
  const TakeAnswerArgs::Output* answer_behind(const MatmulOutput& output, Epilogue epilogue) const {
    if (answer == nullptr) return nullptr;
    for (int i = 0; i < answer->output_count; ++i)
      if (answer->outputs[i].out == output.out + output_width(output, epilogue)) return &answer->outputs[i];
    return nullptr;
  }
};

}  // namespace genai::cuda
