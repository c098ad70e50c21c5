// The selection kernel's text and the layout, compiled for the CPU so that any machine can test them.
#include <cstddef>
#include <vector>

#include "layout.h"
#include "select_core.h"

extern "C" int oasis_select_cpu(const oasis::SelectArgs* args, const int* position, int step,
                                int pairs, int max_blocks) {
  oasis::SelectScratch scratch;
  std::vector<char> base(4 * (8 * static_cast<size_t>(max_blocks) + 8 * args->pool +
                              2 * args->chosen + 2048));
  oasis::carve_scratch(&scratch, base.data(), max_blocks, args->pool, args->chosen);
  for (int pair = 0; pair < pairs; ++pair)
    oasis::select_pair(*args, scratch, pair, position + pair / args->heads, &step);
  return 0;
}

// kind 0: K element, 1: V element, 2: bf16 bound byte, 3: fp8 bound byte.
extern "C" int oasis_layout(int kind, int row, int column) {
  if (kind == 0) return oasis::key_index(row, column);
  if (kind == 1) return oasis::value_index(row, column);
  return oasis::bound_offset(row, column, kind == 3);
}
