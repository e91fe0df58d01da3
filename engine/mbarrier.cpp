// Barriers in shared memory, with the stores and arrivals that they count: `mbarrier.*`, `cp.async.mbarrier.arrive`,
// `st.async` and `red.async` (PTX ISA, sections 9.7.13.15 and 9.7.9.12). waits.cpp implements waiting.
#include <set>

#include "dispatch.h"
#include "pending.h"

namespace kernrec {
namespace {

Space shared_or_generic(const Source& ins) { return ins.has("shared") ? Space::kShared : Space::kGeneric; }

enum class Action { kInitialize, kInvalidate, kExpect, kComplete, kArrive };

struct BarrierForm {
    Instruction barrier;
    Action action = Action::kInitialize;
    Row count;  // count of each lane, if the instruction has a count
    uint32_t default_count = 0;
    bool expects = false, releases = true, drops = false, completes = true;
    Row state;  // receives the state of the barrier before an arrival
};

void act_on_barriers(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<BarrierForm>(ins);
    Mbarriers& barriers = batch.work().mbarriers;
    RaceDetector* races = form.releases ? batch.races() : nullptr;
    std::set<std::tuple<uint32_t, uint64_t, uint64_t>> released;  // (warp, barrier, phase) of each release
    const bool changes = form.action == Action::kInitialize || form.action == Action::kInvalidate;
    for (const LanePlace& use : barriers_of(batch, form.barrier, changes)) {
        const uint32_t count = form.count ? uint32_t(batch.value(form.count, use.lane)) : form.default_count;
        switch (form.action) {
            case Action::kInitialize: barriers.initialize(use, count); break;
            case Action::kInvalidate: barriers.invalidate(use); break;
            case Action::kExpect: barriers.expect(use, count); break;
            case Action::kComplete: barriers.expect(use, -int64_t(count)); break;
            case Action::kArrive: {
                if (form.expects) barriers.expect(use, count);
                if (races && released.insert({use.warp(), use.place.key(), barriers.completed_phases()}).second)
                    races->release(use.warp(), batch.flat(use.place));
                const uint64_t word = barriers.arrive(use, form.expects ? 1 : count, form.drops, form.completes);
                if (form.state) batch.row<uint64_t>(form.state)[use.lane] = word;
            }
        }
    }
}

void count_pending(Batch& batch, const Instruction& ins) {
    each_lane(batch, ins, [&](uint32_t lane) {
        const auto phase = bit_cast<BarrierPhase>(batch.value(ins.a, lane));
        if (phase.is_valid != 1) batch.fail("the operand is not the state of a barrier");
        batch.row<uint32_t>(ins.d)[lane] = uint32_t(phase.pending);
    });
}

void test_phase(Batch& batch, const Instruction& ins) {
    const auto& test = form_of<PhaseTest>(ins);
    const std::vector<LanePlace> uses = barriers_of(batch, test.barrier);
    if (uses.empty()) return;
    uint32_t* results = batch.flags(ins.d);
    std::set<std::pair<uint32_t, size_t>> seen;  // warps, and the barriers that they pass
    std::set<uint32_t> warps;
    for (const LanePlace& use : uses) {
        const uint32_t bit = 1u << use.lane % kWarp;
        results[use.warp()] &= ~bit;
        if (!batch.work().mbarriers.passed(use, test.parity(batch, use.lane))) continue;
        results[use.warp()] |= bit;
        seen.insert({use.warp(), batch.flat(use.place)});
        warps.insert(use.warp());
    }
    if (RaceDetector* races = batch.races())
        for (const auto& [warp, place] : seen) races->acquire(warp, place);
    batch.count("mbarrier.waits", warps.size());
}

const Registration kMbarrier({"mbarrier"}, [](Decoder& decoder, const Source& ins) {
    static const std::set<std::string> known = {"shared",    "cta",      "cluster",      "b64",         "release",
                                                "acquire",   "relaxed",  "noComplete",   "expect_tx",   "parity",
                                                "init",      "inval",    "arrive",       "arrive_drop", "complete_tx",
                                                "test_wait", "try_wait", "pending_count"};
    for (const std::string& mark : ins.modifiers)
        if (!known.count(mark)) refuse("." + mark);
    if (ins.type() != "b64") refuse();
    const std::string& kind = ins.modifiers[0];
    if (kind == "test_wait" || kind == "try_wait") {
        const bool is_parity = ins.has("parity");
        const PhaseTest test{decoder.access(ins.operands[1], shared_or_generic(ins)),
                             decoder.value(ins.operands[2], is_parity ? "u32" : "b64"), is_parity};
        const Row d = decoder.write(ins.operands[0], "pred");
        Instruction& made = emit_form(decoder, test_phase, test);
        made.d = d;
        if (decoder.source == decoder.block().first)
            decoder.block().phase_test = std::static_pointer_cast<const PhaseTest>(made.form);
        return;
    }
    if (kind == "pending_count") {
        if (ins.operands.size() != 2) refuse();
        const Row a = decoder.value(ins.operands[1], "b64"), d = decoder.write(ins.operands[0], "b32");
        decoder.emit(count_pending, d, a);
        return;
    }
    BarrierForm form;
    Operands operands = ins.operands;
    const bool arrives = kind == "arrive" || kind == "arrive_drop";
    if (arrives && operands[0].kind != OperandKind::kAddress) {
        if (operands[0].kind != OperandKind::kNone) form.state = decoder.write(operands[0], "b64");
        operands.erase(operands.begin());
    }
    form.barrier = decoder.access(operands[0], shared_or_generic(ins));
    form.default_count = arrives;
    if (operands.size() > 1) form.count = decoder.value(operands[1], "u32");
    form.expects = ins.has("expect_tx");
    form.releases = !ins.has("relaxed");
    form.drops = kind == "arrive_drop";
    form.completes = !ins.has("noComplete");
    static const std::map<std::string, Action> kActions = {
        {"init", Action::kInitialize},      {"inval", Action::kInvalidate}, {"expect_tx", Action::kExpect},
        {"complete_tx", Action::kComplete}, {"arrive", Action::kArrive},    {"arrive_drop", Action::kArrive}};
    const auto action = kActions.find(kind);
    if (action == kActions.end()) refuse();
    form.action = action->second;
    emit_form(decoder, act_on_barriers, form);
});

// --- cp.async.mbarrier.arrive: arrive after a thread's copies ---

void arrive_after_copies(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<BarrierForm>(ins);
    Pending& work = batch.work();
    if (form.expects)
        for (const LanePlace& use : barriers_of(batch, form.barrier)) work.mbarriers.await_more(use, 1);
    const std::vector<LanePlace> uses = barriers_of(batch, form.barrier);
    work.start(
        [&batch, &work, uses] {
            for (const LanePlace& use : uses) finish_copies(batch, use.warp(), 1u << use.lane % kWarp, std::nullopt);
            for (const LanePlace& use : uses) {
                if (RaceDetector* races = batch.races()) races->release(use.warp(), batch.flat(use.place));
                work.mbarriers.arrive(use, 1);
            }
        },
        uses);
}

// --- st.async and red.async ---

struct AsyncStore {
    Instruction target;   // access whose size is rounded up to a power of two
    Instruction barrier;  // access of 8 bytes
    std::vector<Row> sources;
    NumberType type = NumberType::kU32;
    uint32_t unit = 4;
    Reduction reduction = Reduction::kNone;

    uint32_t bytes() const { return unit * uint32_t(sources.size()); }
};

void store_async(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<AsyncStore>(ins);
    const uint32_t bytes = form.bytes();
    uint32_t whole = 1;
    while (whole < bytes) whole *= 2;
    const std::vector<LanePlace> targets = batch.shared_places(form.target, whole, true);
    if (targets.empty()) return;
    const std::vector<LanePlace> uses = barriers_of(batch, form.barrier);
    std::vector<std::shared_ptr<BulkCopy>> copies;
    for (size_t i = 0; i < targets.size(); i++) {
        BulkCopy& copy = *copies.emplace_back(std::make_shared<BulkCopy>());
        copy.lane = targets[i].lane;
        copy.bytes = bytes;
        copy.reduction = form.reduction;
        copy.type = form.type;
        copy.barriers = {uses[i]};
        for (const Row& row : form.sources) {
            const uint64_t value = batch.value(row, copy.lane);
            const auto* first = reinterpret_cast<const uint8_t*>(&value);
            copy.data.insert(copy.data.end(), first, first + form.unit);
        }
        copy.fetched = true;
        CopySide& target = copy.targets.emplace_back();
        target.element_bytes = form.unit;
        target.start = batch.bytes_at(targets[i].place);
        target.runs = {{0, bytes}};
        target.span = {batch.flat(targets[i].place), batch.flat(targets[i].place) + bytes};
    }
    batch.work().start(copies);
    batch.count("bulk.shared_write_bytes", uint64_t(bytes) * targets.size());
}

const Registration kAsyncStore({"st.async", "red.async"}, [](Decoder& decoder, const Source& ins) {
    const std::string& type = ins.type();
    if (!ins.has("shared") || !ins.has("cluster") || !ins.has("mbarrier") || ins.operands.size() != 3) refuse();
    AsyncStore form;
    for (const std::string& mark : ins.modifiers)
        if (const Reduction found = reduction_of(mark); found != Reduction::kNone) form.reduction = found;
    const bool is_red = ins.opcode == "red";
    if (is_red != (form.reduction != Reduction::kNone) || (is_red && type[0] == 'f')) refuse();
    form.type = type_among(type, {"b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64"});
    form.unit = uint32_t(number_bits(form.type)) / 8;
    for (const Operand& item : elements(ins.operands[1])) form.sources.push_back(decoder.value(item, type));
    if (form.bytes() > 16) refuse("more than 16 bytes");
    form.target = decoder.access(ins.operands[0], Space::kShared);
    form.barrier = decoder.access(ins.operands[2], Space::kShared);
    emit_form(decoder, store_async, form);
});

}  // namespace

void decode_arrival_after_copies(Decoder& decoder, const Source& ins) {
    BarrierForm form;
    form.barrier = decoder.access(ins.operands[0], shared_or_generic(ins));
    form.expects = !ins.has("noinc");
    emit_form(decoder, arrive_after_copies, form);
}

}  // namespace kernrec
