// Batches of scattered copies from pinned memory with two units in each copy: two units are the two
// rows of one copy whose pitches are the distances of their sources and of their targets.
//
//   nvcc -O2 -std=c++17 -arch=sm_90a -o copy_pairs benchmarks/gpu/copy_pairs.cu && ./copy_pairs
//
// 36 layers of 384 units, in parts that a team of threads takes in turn, each thread with a stream of
// its own; a line is 30 repeats (copies.cuh).
#include "copies.cuh"

constexpr size_t kMost = 128;

cudaMemcpy3DBatchOp operation(const Unit& first, const Unit* second, size_t bytes) {
  cudaMemcpy3DBatchOp op{};
  op.src.type = op.dst.type = cudaMemcpyOperandTypePointer;
  op.src.op.ptr.ptr = first.from;
  op.dst.op.ptr.ptr = first.to;
  op.src.op.ptr.rowLength = second ? second->from - first.from : bytes;
  op.dst.op.ptr.rowLength = second ? second->to - first.to : bytes;
  op.src.op.ptr.layerHeight = op.dst.op.ptr.layerHeight = second ? 2 : 1;
  op.extent = cudaExtent{bytes, size_t(second ? 2 : 1), 1};
  op.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  return op;
}

// Make operations of units in order of their sources: each takes the next one whose target lies
// behind its own as its second row.
size_t pairs(Unit* units, size_t count, size_t bytes, cudaMemcpy3DBatchOp* ops) {
  std::sort(units, units + count, [](const Unit& a, const Unit& b) { return a.from < b.from; });
  bool taken[kMost] = {};
  size_t made = 0;
  for (size_t i = 0; i < count; ++i) {
    if (taken[i]) continue;
    size_t j = i + 1;
    while (j < count && (taken[j] || units[j].to < units[i].to + bytes ||
                         units[j].from < units[i].from + bytes))
      ++j;
    if (j < count) taken[j] = true;
    ops[made++] = operation(units[i], j < count ? &units[j] : nullptr, bytes);
  }
  return made;
}

// Submit units as a batch of copies of rows, one or two units each; returns how many copies.
size_t submit_rows(const Unit* units, size_t count, size_t bytes, bool two, cudaStream_t stream) {
  cudaMemcpy3DBatchOp ops[kMost];
  Unit mine[kMost];
  std::copy(units, units + count, mine);
  size_t made = count;
  if (two)
    made = pairs(mine, count, bytes, ops);
  else
    for (size_t i = 0; i < count; ++i) ops[i] = operation(mine[i], nullptr, bytes);
  CHECK(cudaMemcpy3DBatchAsync(made, ops, 0, stream));
  return made;
}

int main() {
  Pools pools(size_t(2) << 30);
  enum Way { kPlain, kSingle, kPairs };
  const char* const names[] = {"1D batch", "3D batch, one unit", "3D batch, two units"};
  for (size_t size : {size_t(8192), size_t(16384), size_t(32768)}) {
    std::vector<Unit> units = pools.units(size);
    for (int round = 0; round < 2; ++round)
      for (Way way : {kPlain, kSingle, kPairs}) {
        std::atomic<size_t> copies{0}, copied{0};
        auto submit = [&](const Unit* some, size_t count, cudaStream_t stream) {
          if (way == kPlain)
            submit_batch(some, count, size, cudaMemcpySrcAccessOrderStream, 0, stream);
          copies += way == kPlain ? count : submit_rows(some, count, size, way == kPairs, stream);
          copied += count;
        };
        pools.clear();
        for (int threads : {1, 2, 4})
          for (size_t part : {size_t(64), kMost}) {
            copies = copied = 0;
            Timed timed = pools.time(units, part, threads, submit);
            char more[40];
            std::snprintf(more, sizeof more, ", %.2f units a copy", double(copied) / copies);
            print_line(names[way], size, part, threads, timed, more);
          }
        tell_wrong(units, size);
      }
  }
  return 0;
}
