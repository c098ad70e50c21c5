// Batches of scattered copies from pinned memory by the attributes of the batch: when the source may
// be read, and whether the driver is to favour overlap with kernels.
//
//   nvcc -O2 -std=c++17 -arch=sm_90a -o copy_flags benchmarks/gpu/copy_flags.cu && ./copy_flags
//
// 36 layers of 384 units, in parts that a team of threads takes in turn, each thread with a stream of
// its own; a line is 30 repeats (copies.cuh).
#include "copies.cuh"

struct Way {
  const char* name;
  cudaMemcpySrcAccessOrder order;
  unsigned flags;
};

int main() {
  Pools pools(size_t(4) << 30);
  const Way ways[] = {
      {"stream", cudaMemcpySrcAccessOrderStream, 0},
      {"any", cudaMemcpySrcAccessOrderAny, 0},
      {"stream, overlap", cudaMemcpySrcAccessOrderStream, cudaMemcpyFlagPreferOverlapWithCompute},
      {"any, overlap", cudaMemcpySrcAccessOrderAny, cudaMemcpyFlagPreferOverlapWithCompute},
  };
  for (size_t size : {size_t(8192), size_t(16384), size_t(32768)}) {
    std::vector<Unit> units = pools.units(size);
    for (const Way& way : ways) {
      pools.clear();
      auto submit = [&](const Unit* some, size_t count, cudaStream_t stream) {
        submit_batch(some, count, size, way.order, way.flags, stream);
      };
      for (int threads : {1, 2, 4})
        for (size_t part : {size_t(64), size_t(384)})
          print_line(way.name, size, part, threads, pools.time(units, part, threads, submit));
      tell_wrong(units, size);
    }
  }
  return 0;
}
