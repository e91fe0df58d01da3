// Barriers in shared memory, with the stores and arrivals that they count: `mbarrier.*`, `cp.async.mbarrier.arrive`,
// `st.async` and `red.async` (PTX ISA, sections 9.7.13.15 and 9.7.9.12). waits.cpp implements waiting.
#include <set>

#include "dispatch.h"
#include "pending.h"

namespace kernrec {
namespace {

Space shared_or_generic(const Source& ins) { return ins.has("shared") ? Space::kShared : Space::kGeneric; }

enum class Action { kInitialize, kInvalidate, kExpect, kComplete };

// Form of `mbarrier`: an access of 8 bytes, and the count of each lane, or one for all.
struct BarrierForm {
    Instruction barrier;
    Action action = Action::kInitialize;
    Row count;
    uint32_t default_count = 0;
    bool expects = false, releases = true, drops = false, completes = true;
    Row state;  // for an arrival: receives the barrier's previous word

    uint32_t count_of(Batch& batch, uint32_t lane) const {
        return count ? uint32_t(batch.value(count, lane)) : default_count;
    }
};

void act_on_barriers(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<BarrierForm>(ins);
    Mbarriers& barriers = batch.work().mbarriers;
    const bool changes = form.action == Action::kInitialize || form.action == Action::kInvalidate;
    for (const LanePlace& use : barriers_of(batch, form.barrier, changes)) {
        const uint32_t count = form.count_of(batch, use.lane);
        switch (form.action) {
            case Action::kInitialize: barriers.initialize(use, count); break;
            case Action::kInvalidate: barriers.invalidate(use); break;
            case Action::kExpect: barriers.expect(use, count); break;
            case Action::kComplete: barriers.expect(use, -int64_t(count)); break;
        }
    }
}

void arrive(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<BarrierForm>(ins);
    Mbarriers& barriers = batch.work().mbarriers;
    PhaseRaces* races = form.releases ? batch.phase_races() : nullptr;
    std::set<std::tuple<uint32_t, uint64_t, uint64_t>> released;  // lanes of a warp that arrive together release once
    for (const LanePlace& use : barriers_of(batch, form.barrier)) {
        const uint32_t count = form.count_of(batch, use.lane);
        if (form.expects) barriers.expect(use, count);
        if (races && released.insert({use.warp(), use.place.key(), barriers.completed_phases()}).second)
            races->release(use.warp(), batch.flat(use.place));
        const uint64_t word = barriers.arrive(use, form.expects ? 1 : count, form.drops, form.completes);
        if (form.state) batch.row<uint64_t>(form.state)[use.lane] = word;
    }
}

void count_pending(Batch& batch, const Instruction& ins) {
    each_lane(batch, ins, [&](uint32_t lane) {
        const uint64_t word = batch.value(ins.a, lane);
        if (!BarrierPhase::is_initialized(word)) batch.fail("no state");
        batch.row<uint32_t>(ins.d)[lane] = uint32_t(BarrierPhase::of(word).pending);
    });
}

void test_phase(Batch& batch, const Instruction& ins) {
    const auto& test = form_of<PhaseTest>(ins);
    const std::vector<LanePlace> uses = barriers_of(batch, test.barrier);
    if (uses.empty()) return;
    uint32_t* results = batch.flags(ins.d);
    std::set<std::pair<uint32_t, size_t>> seen;
    std::set<uint32_t> warps, blocks;
    for (const LanePlace& use : uses) {
        const uint32_t bit = 1u << use.lane % kWarp;
        results[use.warp()] &= ~bit;
        if (!batch.work().mbarriers.passed(use, test.parity(batch, use.lane))) continue;
        results[use.warp()] |= bit;
        seen.insert({use.warp(), batch.flat(use.place)});
        warps.insert(use.warp());
        blocks.insert(batch.lane_block(use.lane));
    }
    if (PhaseRaces* races = batch.phase_races()) {
        for (const auto& [warp, place] : seen) races->acquire(warp, place);
        races->pass_phase({blocks.begin(), blocks.end()});
    }
    batch.count("mbarrier.waits", warps.size());
}

const Registration kMbarrier({"mbarrier"}, [](Decoder& decoder, const Source& ins) {
    static const std::set<std::string> known = {"shared",    "cta",      "cluster",      "b64",         "release",
                                                "acquire",   "relaxed",  "noComplete",   "expect_tx",   "parity",
                                                "init",      "inval",    "arrive",       "arrive_drop", "complete_tx",
                                                "test_wait", "try_wait", "pending_count"};
    for (const std::string& mark : ins.modifiers)
        if (!known.count(mark)) refuse("." + mark);
    if (ins.modifiers.empty() || ins.type() != "b64" || ins.operands.empty()) refuse();
    const std::string& kind = ins.modifiers[0];
    if (kind == "test_wait" || kind == "try_wait") {
        if (ins.operands.size() < 3) refuse();
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
        if (operands.empty()) refuse();
    }
    form.barrier = decoder.access(operands[0], shared_or_generic(ins));
    form.default_count = arrives;
    if (operands.size() > 1) form.count = decoder.value(operands[1], "u32");
    form.expects = ins.has("expect_tx");
    form.releases = !ins.has("relaxed");
    form.drops = kind == "arrive_drop";
    form.completes = !ins.has("noComplete");
    if (arrives) {
        emit_form(decoder, arrive, form);
        return;
    }
    if (kind == "inval") form.action = Action::kInvalidate;
    else if (kind == "expect_tx") form.action = Action::kExpect;
    else if (kind == "complete_tx") form.action = Action::kComplete;
    else if (kind != "init") refuse();
    emit_form(decoder, act_on_barriers, form);
});

// --- cp.async.mbarrier.arrive: arrive after a thread's copies ---

void arrive_after_copies(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<BarrierForm>(ins);
    Pending& work = batch.work();
    if (form.expects)
        for (const LanePlace& use : barriers_of(batch, form.barrier)) work.mbarriers.await_more(use, 1);
    const std::vector<LanePlace> uses = barriers_of(batch, form.barrier);
    work.engine.start(
        [&batch, &work, uses] {
            for (const LanePlace& use : uses) finish_copies(batch, use.warp(), 1u << use.lane % kWarp, std::nullopt);
            for (const LanePlace& use : uses) {
                if (PhaseRaces* races = batch.phase_races()) races->release(use.warp(), batch.flat(use.place));
                work.mbarriers.arrive(use, 1);
            }
        },
        uses);
}

// --- st.async and red.async ---

struct AsyncStore {
    Instruction target, barrier;  // the whole access rounded up to a power of two, and 8 bytes
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
    PhaseRaces* races = form.reduction == Reduction::kNone ? batch.phase_races() : nullptr;
    std::vector<uint64_t> values;
    for (size_t i = 0; i < targets.size(); i++) {
        const size_t place = batch.flat(targets[i].place);
        if (races) races->begin_write(ins.source, targets[i].warp(), {place, place + bytes}, batch.flat(uses[i].place));
        for (const Row& row : form.sources) values.push_back(batch.value(row, targets[i].lane));
    }
    batch.work().engine.start(
        [&batch, &form, targets, uses, values, races, bytes] {
            size_t next = 0;
            for (const LanePlace& target : targets)
                for (size_t i = 0; i < form.sources.size(); i++) {
                    uint8_t* at = batch.bytes_at(target.place) + i * form.unit;
                    uint64_t old = 0;
                    std::memcpy(&old, at, form.unit);
                    const uint64_t made = reduce(form.reduction, form.type, old, values[next++]);
                    std::memcpy(at, &made, form.unit);
                }
            for (size_t i = 0; i < targets.size() && races; i++) {
                const size_t place = batch.flat(targets[i].place);
                races->end_write({place, place + bytes}, batch.flat(uses[i].place));
            }
            for (const LanePlace& use : uses) batch.work().mbarriers.expect(use, -int64_t(bytes));
        },
        uses);
    batch.count("bulk.shared_write_bytes", uint64_t(bytes) * targets.size());
}

const Registration kAsyncStore({"st.async", "red.async"}, [](Decoder& decoder, const Source& ins) {
    static const std::map<std::string, NumberType> types = {
        {"b32", NumberType::kU32}, {"u32", NumberType::kU32}, {"s32", NumberType::kS32}, {"b64", NumberType::kU64},
        {"u64", NumberType::kU64}, {"s64", NumberType::kS64}, {"f32", NumberType::kF32}, {"f64", NumberType::kF64}};
    const auto type = types.find(ins.modifiers.back());
    if (!ins.has("shared") || !ins.has("cluster") || !ins.has("mbarrier") || type == types.end() ||
        ins.operands.size() != 3)
        refuse();
    AsyncStore form;
    for (const std::string& mark : ins.modifiers)
        if (const Reduction found = reduction_of(mark); found != Reduction::kNone) form.reduction = found;
    const bool is_red = ins.opcode == "red";
    if (is_red != (form.reduction != Reduction::kNone) || (is_red && type->first[0] == 'f')) refuse();
    form.type = type->second;
    form.unit = uint32_t(number_bits(form.type)) / 8;
    for (const Operand& item : elements(ins.operands[1])) form.sources.push_back(decoder.value(item, type->first));
    if (form.bytes() > 16) refuse("more than 16 bytes");
    form.target = decoder.access(ins.operands[0], Space::kShared);
    form.barrier = decoder.access(ins.operands[2], Space::kShared);
    emit_form(decoder, store_async, form);
});

}  // namespace

void decode_arrival_after_copies(Decoder& decoder, const Source& ins) {
    if (ins.operands.empty()) refuse();
    BarrierForm form;
    form.barrier = decoder.access(ins.operands[0], shared_or_generic(ins));
    form.expects = !ins.has("noinc");
    emit_form(decoder, arrive_after_copies, form);
}

}  // namespace kernrec
