// exchange_access.h - words of an exchange (exchange_words.h) as the host stores and loads them. A word that was
// loaded makes visible what came before its store: on the host that costs nothing.
#pragma once
#include <atomic>

#include "engine/exchange_words.h"

namespace genai {

inline ExchangeWord load_word(const ExchangeWord& word) {
  return std::atomic_ref(const_cast<ExchangeWord&>(word)).load(std::memory_order_acquire);  // atomic_ref takes no const
}
inline void store_word(ExchangeWord& word, ExchangeWord value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

}  // namespace genai
