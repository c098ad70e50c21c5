// The selection kernel's text compiled for the CPU, so that its decisions can be tested anywhere.
#include <cstddef>
#include <vector>

#include "select_core.h"

extern "C" int oasis_select_cpu(const oasis::SelectArgs* args, const int* position, int step,
                                int pairs, int max_blocks) {
  oasis::SelectScratch scratch;
  std::vector<char> base(4 * (8 * static_cast<size_t>(max_blocks) + 8 * args->pool +
                              2 * args->chosen + 2048));
  oasis::carve_scratch(&scratch, base.data(), max_blocks, args->pool, args->chosen);
  for (int pair = 0; pair < pairs; ++pair)
    oasis::select_pair(*args, scratch, pair, position[pair / args->heads], step + 1);
  return 0;
}
