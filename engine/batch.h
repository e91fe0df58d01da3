// The state of a batch of thread blocks that run together: registers, memories, positions of lanes, and counters.
#pragma once

#include <cstring>

#include "checks.h"
#include "program.h"
#include "races.h"

namespace kernrec {

struct Counter {
    uint64_t value = 0;
    bool present = false;
    void add(uint64_t by) {
        value += by;
        present = true;
    }
};

struct BufferCounts {
    Counter sectors[3], requests[3], bytes[3];  // by AccessKind
    Counter atomics;
};

struct Counts {
    std::vector<BufferCounts> buffers;
    BufferCounts local;
    Counter wavefronts[3], ideal[3];  // of shared memory, by AccessKind
    Counter atomic_repeats, shared_atomics, local_atomics, barriers;
    std::map<std::string, uint64_t> named;
    std::vector<uint64_t> warps, lanes;  // by basic block

    void merge(const Counts& other);
};

// A request that was resolved: addresses of the lanes of one warp, and where their bytes are.
struct Resolved {
    uint32_t warp = 0, mask = 0;
    Space space = Space::kGlobal;
    uint32_t buffer = 0;
    int64_t addresses[kWarp];  // within the space
    uint8_t* places[kWarp];
};

constexpr uint8_t kPoisonByte = 0xFF;  // unwritten shared and local memory: NaN as a float, -1 as an integer

class Batch : public Memory {
   public:
    Batch(const Program& program, const Launch& launch);
    ~Batch() override;
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    // Run the thread blocks with these linear numbers.
    void run(const int64_t* blocks, uint32_t count);

    // For operations.

    template <class T>
    T* row(const Row& row) {
        return reinterpret_cast<T*>(arena_ + offset(row));
    }
    uint32_t* flags(const Row& row) { return reinterpret_cast<uint32_t*>(arena_ + offset(row)); }

    // Warps that run the present instruction, and the lanes of each.
    uint32_t running = 0;
    const uint32_t* warps() const { return running_warps_.data(); }
    uint32_t mask(uint32_t position, const Instruction& ins) {
        uint32_t mask = running_masks_[position];
        if (ins.guard) {
            const uint32_t flag = flags(ins.guard)[running_warps_[position]];
            mask &= ins.guard_inverted ? ~flag : flag;
        }
        return mask;
    }
    // All warps of the batch run with all lanes: one loop over all lanes will do.
    bool all_full = false;
    uint32_t lanes = 0, warp_count = 0, warps_per_block = 0;
    Counts counts;
    const Program& program;
    const Launch& launch;

    // Resolve the access of an instruction for all warps that run, checked as a whole before anything moves.
    // `lanes_of_warp`: lanes that may take part.
    const std::vector<Resolved>& access(const Instruction& ins, uint32_t bytes, AccessKind kind,
                                        uint32_t lanes_of_warp = ~0u);
    // The access of some lanes of one warp.
    std::vector<Resolved> access_of(const Instruction& ins, uint32_t bytes, AccessKind kind, uint32_t warp,
                                    uint32_t lanes_of_warp);
    // Fail if an instruction of whole warps runs for a part of one.
    void require_whole_warps(const Instruction& ins);
    void count_access(const Instruction& ins, const Resolved& at, uint32_t bytes, AccessKind kind, bool merges = false,
                      bool rows_of_matrices = false);
    void check_races(const Instruction& ins, const std::vector<Resolved>& all, uint32_t bytes, bool write, bool agree,
                     bool is_copy = false);
    bool races() const { return races_ != nullptr; }

    // cp.async: copies of each warp that were started and not yet waited for, in order. The bytes reach shared memory
    // only when the thread waits: a kernel that forgets to wait reads what was there before.
    struct Copies {
        uint32_t mask, group, bytes;
        uint8_t* places[kWarp];
        uint8_t data[kWarp][16];
    };
    std::vector<std::vector<Copies>> pending;
    std::vector<uint32_t> committed;  // groups that each lane committed

    // Memory

    void resolve(const WarpAccess& access, uint8_t* (&places)[kWarp]) override;
    void record(const WarpAccess& access) override;
    uint8_t* shared(uint32_t block) override { return shared_.data() + size_t(block) * shared_stride_; }
    uint32_t shared_bytes() const override { return launch.shared_bytes; }
    uint32_t block_of(uint32_t warp) const override { return warp / warps_per_block; }
    uint8_t* global(uint32_t warp, uint32_t lane, uint64_t address, uint64_t bytes, bool write) override;
    void count(const char* metric, uint64_t by) override { counts.named[metric] += by; }
    [[noreturn]] void fail(const std::string& text) override;
    [[noreturn]] void fail(uint32_t warp, uint32_t lane, const std::string& text) override;
    std::string coordinates(uint32_t lane) const;  // "block (x, y, z) thread (x, y, z)"
    std::string block_text(uint32_t lane) const;
    std::string thread_text(uint32_t lane) const;
    uint32_t source = 0;  // instruction that runs

   private:
    size_t offset(const Row& row) const;
    void fill_constants();
    void fill_specials();
    int64_t special(const std::string& name, uint32_t lane) const;

    void start(const int64_t* blocks, uint32_t count);
    bool resolve_warp(const Instruction& ins, uint32_t bytes, bool write, bool narrow, Resolved& at);
    [[noreturn]] void fail_access(const Instruction& ins, uint32_t bytes, bool write, uint32_t lanes_of_warp);

    // Scheduling
    void run_all();
    void execute(const BasicBlock& block);
    int32_t lowest() ;
    bool select(int32_t block);
    void finish(const BasicBlock& block, uint32_t index, bool uniform, int32_t& position);
    void release();
    void open(uint32_t block, uint32_t number);
    void update_live();
    [[noreturn]] void fail_deadlocked();
    bool spinning(uint32_t lane) const;

    uint8_t* arena_ = nullptr;
    std::map<uint32_t, size_t> bases_;
    size_t base1_ = 0, base8_ = 0, base16_ = 0, base32_ = 0, base64_ = 0;
    std::vector<uint32_t> running_warps_, running_masks_;
    std::vector<uint8_t> shared_, local_, argument_;
    uint32_t shared_stride_ = 0, local_stride_ = 0, argument_stride_ = 0;
    std::vector<int64_t> block_numbers_;
    uint32_t blocks_ = 0;      // thread blocks of the present batch
    std::vector<uint32_t> live_;       // lanes by warp
    uint32_t live_count_ = 0, live_warps_ = 0;
    std::vector<int32_t> positions_;   // basic block of each lane, while they disagree
    std::vector<uint8_t> parked_;      // lanes that wait for others of their warp
    std::vector<int32_t> waiting_at_;  // barrier of each lane, or -1
    std::vector<int32_t> resume_;
    bool any_waiting_ = false;
    std::map<std::pair<uint32_t, int64_t>, int64_t> arrived_, expected_;
    const BasicBlock* reduction_ = nullptr;
    std::vector<uint32_t> tried_;      // looks in vain of each lane in a spin loop
    bool has_spins_ = false;
    std::vector<Resolved> resolved_;
    std::unique_ptr<RaceDetector> races_;
    std::unique_ptr<Checks> checks_;
};

}  // namespace kernrec
