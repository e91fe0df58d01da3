// The connection to kernrec, the GPU's properties, and device memory.
#include "core.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <linux/memfd.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

namespace capture {

namespace {

constexpr int kShift = 40;  // Equals BUFFER_SHIFT in kernrec.ptx.state.launch_layout.
constexpr int kSlots = 80;  // Linux loads programs at addresses from 84 << kShift.
constexpr uint64_t kPool = uint64_t(kSlots) << kShift;
constexpr size_t kPoolBytes = size_t(1) << 36;
constexpr size_t kAlignment = 512, kPage = 4096;

int connection = -1;
bool forked = false;
size_t used = 0;

// Repeat a call that a signal interrupted.
template <class Call>
ssize_t repeated(Call call) {
    ssize_t done;
    do done = call();
    while (done < 0 && errno == EINTR);
    return done;
}

void write_all(const void* data, size_t size) {
    for (const char* at = static_cast<const char*>(data); size;) {
        const ssize_t done = repeated([&] { return send(connection, at, size, MSG_NOSIGNAL); });
        if (done <= 0) stop("kernrec ended, and the program with it");
        at += done, size -= size_t(done);
    }
}

void read_all(void* data, size_t size) {
    for (char* at = static_cast<char*>(data); size;) {
        const ssize_t done = repeated([&] { return recv(connection, at, size, 0); });
        if (done <= 0) stop("kernrec ended, and the program with it");
        at += done, size -= size_t(done);
    }
}

void send_descriptor(int descriptor) {
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {};
    iovec part = {&byte, 1};
    msghdr message = {};
    message.msg_iov = &part, message.msg_iovlen = 1, message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
    if (repeated([&] { return sendmsg(connection, &message, MSG_NOSIGNAL); }) != 1)
        stop("kernrec ended, and the program with it");
}

void connect_once() {
    if (forked)
        stop("the program forked after its first CUDA call, and the child makes CUDA calls; CUDA does not allow that");
    if (connection >= 0) return;
    const char* path = getenv("KERNREC_CAPTURE_SOCKET");
    if (!path) stop("start this program with: kernrec capture -- PROGRAM");
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (repeated([&] { return connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address); })) {
        connection = -1;
        stop("kernrec capture has ended");
    }
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
}

struct Device {
    std::map<int, int> attributes;
    std::string name, properties[2];
    size_t memory = 0;
};

const Device& device() {
    static const Device made = [] {
        const Reply reply = ask({"device"});
        Device device;
        device.name = reply.fields[0], device.memory = size_t(reply.number(1));
        device.properties[0] = reply.fields[3], device.properties[1] = reply.fields[4];
        for (const char* at = reply.fields[2].c_str(); *at;) {
            char* end;
            const int key = int(strtol(at, &end, 10));
            device.attributes[key] = int(strtol(end, &end, 10));
            at = end;
        }
        return device;
    }();
    return made;
}

std::map<uint64_t, Allocation>& allocations() {
    // The map is never freed, because destructors may still use it.
    static auto* made = new std::map<uint64_t, Allocation>;
    return *made;
}

std::deque<int>& free_slots() {
    static auto* made = [] {
        auto* slots = new std::deque<int>;
        for (int slot = 1; slot < kSlots; slot++) slots->push_back(slot);
        return slots;
    }();
    return *made;
}

size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Map a new file at the address `slot << kShift` in this process, and send it to the kernrec process.
void* map_slot(int slot, size_t bytes, size_t size, int* kept = nullptr) {
    void* address = reinterpret_cast<void*>(uint64_t(slot) << kShift);
    const int file = int(syscall(SYS_memfd_create, "kernrec", MFD_CLOEXEC));
    if (file < 0 || ftruncate(file, off_t(size))) return nullptr;
    void* at = mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE, file, 0);
    if (at != address) {
        if (at != MAP_FAILED) munmap(at, size);
        close(file);
        return nullptr;
    }
    ask({"map", join(slot, bytes, size)}, file);
    kept ? void(*kept = file) : void(close(file));
    return at;
}

// Return the first address from `kPool` with enough free bytes, or 0 if there is none.
uint64_t pool_gap(size_t bytes) {
    static bool mapped = false;
    if (!mapped && !map_slot(kSlots, kPoolBytes, kPoolBytes)) return 0;
    mapped = true;
    uint64_t at = kPool + kAlignment;  // No allocation starts at kPool, which is the address of the whole range.
    for (auto i = allocations().lower_bound(kPool); i != allocations().end(); ++i) {
        if (i->first >= at + bytes) break;
        at = (i->first + i->second.size + kAlignment) / kAlignment * kAlignment;
    }
    return at + bytes <= kPool + kPoolBytes ? at : 0;
}

}  // namespace

void stop(const std::string& line) {
    fflush(stdout);
    fprintf(stderr, "kernrec: %s\n", line.c_str());
    _exit(1);
}

void missing(const char* call) { stop(std::string(call) + " is not supported by kernrec capture"); }

std::recursive_mutex& lock() {
    static auto* made = new std::recursive_mutex;
    return *made;
}

Reply ask(const std::vector<std::string>& request, int descriptor) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    connect_once();
    std::string data;
    auto put = [&](uint64_t value) { data.append(reinterpret_cast<const char*>(&value), 8); };
    put(request.size());
    for (const std::string& field : request) put(field.size());
    for (const std::string& field : request) data += field;
    write_all(data.data(), data.size());
    if (descriptor >= 0) send_descriptor(descriptor);
    uint64_t count;
    read_all(&count, 8);
    std::vector<uint64_t> sizes(count);
    read_all(sizes.data(), 8 * count);
    Reply reply;
    for (uint64_t size : sizes) {
        reply.fields.emplace_back(size, '\0');
        read_all(&reply.fields.back()[0], size);
    }
    reply.error = atoi(reply.fields[0].c_str());
    reply.fields.erase(reply.fields.begin());
    return reply;
}

int attribute(int number) {
    const auto& all = device().attributes;
    const auto at = all.find(number);
    return at == all.end() ? 0 : at->second;
}

const std::string& device_name() { return device().name; }
size_t device_memory() { return device().memory; }
const std::string& device_properties(int version) { return device().properties[version - 12]; }
size_t used_memory() { return used; }

void* allocate(size_t bytes, Kind kind, bool shared) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    const bool counts = kind != Kind::kHost;
    if (bytes >= size_t(1) << kShift || (counts && used + bytes > device_memory())) return nullptr;
    Allocation made;
    made.size = bytes, made.kind = kind;
    if (!shared && !free_slots().empty()) {
        made.slot = free_slots().front();
        made.base = uint64_t(made.slot) << kShift;
        if (!map_slot(made.slot, bytes, pages(bytes ? bytes : 1))) return nullptr;
        free_slots().pop_front();
    } else {
        made.slot = kSlots;
        made.base = pool_gap(bytes);
        if (!made.base) return nullptr;
    }
    used += counts ? bytes : 0;
    allocations()[made.base] = made;
    return reinterpret_cast<void*>(made.base);
}

bool release(void* pointer) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    const auto at = allocations().find(reinterpret_cast<uint64_t>(pointer));
    if (at == allocations().end()) return false;
    const Allocation freed = at->second;
    if (freed.kind == Kind::kGraph) return true;
    allocations().erase(at);
    used -= freed.kind != Kind::kHost ? freed.size : 0;
    if (freed.slot == kSlots) return true;
    munmap(pointer, pages(freed.size ? freed.size : 1));
    free_slots().push_back(freed.slot);
    ask({"unmap", join(freed.slot)});
    return true;
}

const Allocation* allocation_of(const void* pointer) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    const uint64_t address = reinterpret_cast<uint64_t>(pointer);
    auto at = allocations().upper_bound(address);
    if (at == allocations().begin()) return nullptr;
    --at;
    return address < at->first + at->second.size || address == at->first ? &at->second : nullptr;
}

std::string shared_allocations(const Function& function, const std::string& packed) {
    std::string found;
    for (size_t i = 0; i < function.sizes.size(); i++) {
        uint64_t address;
        if (function.sizes[i] != sizeof address || function.offsets[i] + sizeof address > packed.size()) continue;
        memcpy(&address, packed.data() + function.offsets[i], sizeof address);
        const Allocation* inside = allocation_of(reinterpret_cast<void*>(address));
        if (inside && inside->slot == kSlots) found += (found.empty() ? "" : " ") + join(inside->base, inside->size);
    }
    return found;
}

uint64_t pool_end() {
    std::lock_guard<std::recursive_mutex> guard(lock());
    const auto last = allocations().rbegin();
    return last != allocations().rend() && last->second.slot == kSlots ? last->first + last->second.size : kPool;
}

bool is_device(const void* pointer) {
    const uint64_t slot = reinterpret_cast<uint64_t>(pointer) >> kShift;
    return slot >= 1 && slot <= kSlots;
}

bool accessible(const void* pointer, size_t bytes) {
    if (!bytes) return true;
    if (!pointer) return false;
    if (!is_device(pointer)) return true;
    const Allocation* inside = allocation_of(pointer);
    return inside && reinterpret_cast<uint64_t>(pointer) + bytes <= inside->base + inside->size;
}

void* register_host(void* pointer, size_t bytes) {
    // Replace the program's memory by a mapped file, which kernrec maps, too. Content and addresses stay the same.
    std::lock_guard<std::recursive_mutex> guard(lock());
    if (is_device(pointer) || free_slots().empty() || !bytes) return nullptr;
    const uint64_t start = reinterpret_cast<uint64_t>(pointer), first = start / kPage * kPage;
    const size_t size = pages(start + bytes - first);
    const int slot = free_slots().front();
    int file = -1;
    char* mapped = static_cast<char*>(map_slot(slot, start + bytes - first, size, &file));
    if (!mapped) return nullptr;
    memcpy(mapped, reinterpret_cast<void*>(first), size);
    void* again = mmap(reinterpret_cast<void*>(first), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    close(file);
    if (again == MAP_FAILED) stop("memory of the program could not be registered");
    free_slots().pop_front();
    Allocation made;
    made.base = reinterpret_cast<uint64_t>(mapped), made.size = start + bytes - first, made.slot = slot;
    made.kind = Kind::kHost, made.registered = pointer;
    allocations()[made.base] = made;
    return mapped + (start - first);
}

void* device_address(void* pointer) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    if (allocation_of(pointer)) return pointer;
    const uint64_t address = reinterpret_cast<uint64_t>(pointer);
    for (auto& [base, each] : allocations()) {
        const uint64_t first = reinterpret_cast<uint64_t>(each.registered) / kPage * kPage;
        if (each.registered && address >= first && address - first < each.size)
            return reinterpret_cast<void*>(base + address - first);
    }
    return nullptr;
}

bool unregister_host(void* pointer) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    for (auto& [base, each] : allocations())
        // `release` removes only the mapping at `base`. The program keeps its own mapping of the pages.
        if (each.registered == pointer) return release(reinterpret_cast<void*>(base));
    return false;
}

}  // namespace capture
