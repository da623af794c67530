// A PlugRL v1 client over the probe environment (SPEC 10), in C++17 without libraries.
//
//   g++ -std=c++17 -O2 -Wall -Wextra -Werror -o probe_client probe_client.cpp
//   ./probe_client HOST PORT [--num-envs N] [--max-steps N]
//
// It speaks the base protocol only. It exits with 0 when the server ends the run or --max-steps
// are done, with 1 on every failure that SPEC 8 calls final, with 2 on bad usage.

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <limits>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using std::string;
using std::to_string;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// The server broke the protocol, or refused: final.
struct Fatal : std::runtime_error {
  using runtime_error::runtime_error;
};
// The network broke: worth another try.
struct Lost : std::runtime_error {
  using runtime_error::runtime_error;
};
// The server closed the connection.
struct Closed {
  int code;
  string reason;
};

// ------------------------------------------------------------------ msgpack, as far as needed

struct Value {
  enum Kind { Nil, Bool, Int, Float, Str, Bin, List, Map } kind = Nil;
  double number = 0;                             // Bool, Int and Float
  string bytes;                                  // Str and Bin
  std::vector<Value> items;                      // List
  std::vector<std::pair<Value, Value>> entries;  // Map

  const Value* find(const string& key, Kind type = Str) const {
    for (const auto& entry : entries)
      if (entry.first.kind == type && entry.first.bytes == key) return &entry.second;
    return nullptr;
  }
  bool is_str(const string& text) const { return kind == Str && bytes == text; }
};

class Reader {
 public:
  explicit Reader(const string& frame) : frame_(frame) {}

  Value message() {
    Value value = read(0);
    if (at_ != frame_.size()) throw Fatal("bytes after the message");
    return value;
  }

 private:
  uint64_t unsigned_int(size_t width) {
    need(width);
    uint64_t number = 0;
    while (width-- > 0) number = number << 8 | static_cast<uint8_t>(frame_[at_++]);
    return number;
  }
  void need(uint64_t size) const {
    if (size > frame_.size() - at_) throw Fatal("a message that ends too early");
  }
  Value number(Value::Kind kind, double number) {
    Value value;
    value.kind = kind;
    value.number = number;
    return value;
  }
  Value text(Value::Kind kind, uint64_t size) {
    need(size);
    Value value;
    value.kind = kind;
    value.bytes = frame_.substr(at_, size);
    at_ += size;
    return value;
  }
  Value list(uint64_t size, int depth) {
    need(size);  // an element takes at least a byte
    Value value;
    value.kind = Value::List;
    while (size-- > 0) value.items.push_back(read(depth + 1));
    return value;
  }
  Value map(uint64_t size, int depth) {
    need(size);
    Value value;
    value.kind = Value::Map;
    bool tagged = false;
    while (size-- > 0) {
      Value key = read(depth + 1);
      if (key.kind == Value::Bin && key.bytes == "nd")
        throw Fatal("an array in the encoding of the package msgpack-numpy");
      if (key.is_str("__ndarray__")) throw Fatal("an array with str keys");
      tagged = tagged || key.kind == Value::Bin;
      Value part = read(depth + 1);
      value.entries.emplace_back(std::move(key), std::move(part));
    }
    for (const string known : {"__ndarray__", "__npgeneric__"})
      tagged = tagged && !value.find(known, Value::Bin);
    if (tagged) throw Fatal("a map with a key that is no str");
    return value;
  }

  Value read(int depth) {
    if (depth > 64) throw Fatal("a message that is nested too deep");
    const auto first = static_cast<unsigned>(unsigned_int(1));
    if (first < 0x80) return number(Value::Int, first);
    if (first < 0x90) return map(first & 0x0f, depth);
    if (first < 0xa0) return list(first & 0x0f, depth);
    if (first < 0xc0) return text(Value::Str, first & 0x1f);
    if (first >= 0xe0) return number(Value::Int, static_cast<int8_t>(first));
    switch (first) {
      case 0xc0: return Value();
      case 0xc2: return number(Value::Bool, 0);
      case 0xc3: return number(Value::Bool, 1);
      case 0xc4: case 0xc5: case 0xc6: return text(Value::Bin, unsigned_int(1u << (first - 0xc4)));
      case 0xca: {
        const auto bits = static_cast<uint32_t>(unsigned_int(4));
        float real;
        std::memcpy(&real, &bits, sizeof real);
        return number(Value::Float, real);
      }
      case 0xcb: {
        const uint64_t bits = unsigned_int(8);
        double real;
        std::memcpy(&real, &bits, sizeof real);
        return number(Value::Float, real);
      }
      case 0xcc: case 0xcd: case 0xce: case 0xcf:
        return number(Value::Int, static_cast<double>(unsigned_int(1u << (first - 0xcc))));
      case 0xd0: return number(Value::Int, static_cast<int8_t>(unsigned_int(1)));
      case 0xd1: return number(Value::Int, static_cast<int16_t>(unsigned_int(2)));
      case 0xd2: return number(Value::Int, static_cast<int32_t>(unsigned_int(4)));
      case 0xd3:
        return number(Value::Int, static_cast<double>(static_cast<int64_t>(unsigned_int(8))));
      case 0xd9: case 0xda: case 0xdb: return text(Value::Str, unsigned_int(1u << (first - 0xd9)));
      case 0xdc: case 0xdd: return list(unsigned_int(2u << (first - 0xdc)), depth);
      case 0xde: case 0xdf: return map(unsigned_int(2u << (first - 0xde)), depth);
      default: throw Fatal("a msgpack type that PlugRL does not use");
    }
  }

  const string& frame_;
  size_t at_ = 0;
};

class Writer {
 public:
  string out;

  Writer& map(size_t entries) { return head(0x80, 15, 0xde, entries); }
  Writer& list(size_t items) { return head(0x90, 15, 0xdc, items); }
  Writer& str(const string& text) {
    if (text.size() > 31) throw std::logic_error("no str of this client is that long");
    out += static_cast<char>(0xa0 | text.size());
    out += text;
    return *this;
  }
  Writer& bin(const string& bytes) {
    out += '\xc6';
    big_endian(bytes.size(), 4);
    out += bytes;
    return *this;
  }
  Writer& integer(uint64_t number) {
    if (number < 0x80) {
      out += static_cast<char>(number);
    } else {
      out += '\xce';
      big_endian(number, 4);
    }
    return *this;
  }
  Writer& array(const string& dtype, const std::vector<size_t>& shape, const string& data) {
    map(4).bin("__ndarray__");
    out += '\xc3';
    bin("data").bin(data).bin("dtype").str(dtype).bin("shape").list(shape.size());
    for (const size_t size : shape) integer(size);
    return *this;
  }

 private:
  Writer& head(unsigned small, size_t limit, unsigned large, size_t size) {
    if (size <= limit) {
      out += static_cast<char>(small | size);
    } else {
      out += static_cast<char>(large);
      big_endian(size, 2);
    }
    return *this;
  }
  void big_endian(uint64_t number, int width) {
    for (int shift = 8 * (width - 1); shift >= 0; shift -= 8)
      out += static_cast<char>(number >> shift);
  }
};

// ------------------------------------------------------------------------------- arrays (SPEC 4)

template <typename T>
string packed(const std::vector<T>& numbers) {
  string data;
  for (const T& number : numbers) {
    uint64_t bits = 0;
    std::memcpy(&bits, &number, sizeof number);
    for (size_t byte = 0; byte < sizeof number; ++byte)
      data += static_cast<char>(bits >> (8 * byte));
  }
  return data;
}

struct Array {
  char kind = 'f';
  std::vector<size_t> shape;
  std::vector<double> numbers;  // of kinds b, u, i and f
};

double element(char kind, size_t size, uint64_t bits) {
  if (kind == 'b') return bits != 0;
  if (kind == 'u') return static_cast<double>(bits);
  if (kind == 'i') {
    const unsigned unused = 64 - 8 * static_cast<unsigned>(size);
    return static_cast<double>(static_cast<int64_t>(bits << unused) >> unused);
  }
  if (size == 8) {
    double real;
    std::memcpy(&real, &bits, sizeof real);
    return real;
  }
  if (size == 4) {
    const auto half = static_cast<uint32_t>(bits);
    float real;
    std::memcpy(&real, &half, sizeof real);
    return real;
  }
  const double sign = bits & 0x8000 ? -1 : 1;
  const int exponent = static_cast<int>(bits >> 10 & 0x1f);
  const double fraction = static_cast<double>(bits & 0x3ff) / 1024;
  if (exponent == 31) return std::numeric_limits<double>::quiet_NaN();  // or infinite: refused
  return sign * (exponent ? std::ldexp(1 + fraction, exponent - 15) : std::ldexp(fraction, -14));
}

Array array_of(const Value* value, const string& what) {
  const Value* mark = value ? value->find("__ndarray__", Value::Bin) : nullptr;
  const Value* data = mark ? value->find("data", Value::Bin) : nullptr;
  const Value* dtype = mark ? value->find("dtype", Value::Bin) : nullptr;
  const Value* shape = mark ? value->find("shape", Value::Bin) : nullptr;
  if (!data || !dtype || !shape || value->entries.size() != 4 || mark->kind != Value::Bool ||
      mark->number != 1 || data->kind != Value::Bin || dtype->kind != Value::Str ||
      shape->kind != Value::List)
    throw Fatal(what + " is no array");
  static const std::array<string, 12> types = {"b1", "u1", "u2", "u4", "u8", "i1",
                                               "i2", "i4", "i8", "f2", "f4", "f8"};
  const string type = dtype->bytes.empty() ? "" : dtype->bytes.substr(1);
  const char order = dtype->bytes.empty() ? '?' : dtype->bytes[0];
  const size_t size = type.size() == 2 ? static_cast<size_t>(type[1] - '0') : 0;
  if (std::find(types.begin(), types.end(), type) == types.end() ||
      !(order == '<' || order == '>' || (order == '|' && size == 1)))
    throw Fatal(what + " has the dtype " + dtype->bytes.substr(0, 20));
  Array array;
  array.kind = type[0];
  size_t count = 1;
  for (const Value& extent : shape->items) {
    if (extent.kind != Value::Int || extent.number < 0 || extent.number > 1e9)
      throw Fatal(what + " has no legal shape");
    array.shape.push_back(static_cast<size_t>(extent.number));
    count *= array.shape.back();
    if (count > data->bytes.size()) break;  // more than there is: refused below
  }
  if (array.shape.size() != shape->items.size() || count * size != data->bytes.size())
    throw Fatal(what + " has too few or too many bytes");
  for (size_t at = 0; at < data->bytes.size(); at += size) {
    uint64_t bits = 0;
    for (size_t byte = 0; byte < size; ++byte) {
      const size_t from = at + (order == '>' ? byte : size - 1 - byte);
      bits = bits << 8 | static_cast<uint8_t>(data->bytes[from]);
    }
    array.numbers.push_back(element(array.kind, size, bits));
  }
  return array;
}

// ------------------------------------------------------------------- WebSocket (RFC 6455)

string sha1(string text) {
  std::array<uint32_t, 5> h = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  const uint64_t bits = 8 * static_cast<uint64_t>(text.size());
  text += '\x80';
  while (text.size() % 64 != 56) text += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(bits >> shift);
  const auto rotate = [](uint32_t word, int by) { return word << by | word >> (32 - by); };
  for (size_t block = 0; block < text.size(); block += 64) {
    std::array<uint32_t, 80> w{};
    for (size_t i = 0; i < 64; ++i)
      w[i / 4] = w[i / 4] << 8 | static_cast<uint8_t>(text[block + i]);
    for (size_t i = 16; i < 80; ++i) w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    auto [a, b, c, d, e] = h;
    for (size_t i = 0; i < 80; ++i) {
      uint32_t f, k;
      if (i < 20) f = (b & c) | (~b & d), k = 0x5a827999;
      else if (i < 40) f = b ^ c ^ d, k = 0x6ed9eba1;
      else if (i < 60) f = (b & c) | (b & d) | (c & d), k = 0x8f1bbcdc;
      else f = b ^ c ^ d, k = 0xca62c1d6;
      const uint32_t next = rotate(a, 5) + f + e + k + w[i];
      e = d, d = c, c = rotate(b, 30), b = a, a = next;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
  }
  string digest;
  for (const uint32_t word : h)
    for (int shift = 24; shift >= 0; shift -= 8) digest += static_cast<char>(word >> shift);
  return digest;
}

string base64(const string& bytes) {
  static const string letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  string out;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t group = 0;
    for (size_t i = 0; i < 3; ++i)
      group = group << 8 | (at + i < bytes.size() ? static_cast<uint8_t>(bytes[at + i]) : 0u);
    for (size_t i = 0; i < 4; ++i)
      out += at + i > bytes.size() ? '=' : letters[group >> (18 - 6 * i) & 63];
  }
  return out;
}

class WebSocket {
 public:
  static constexpr double kPatience = 20;  // seconds for a handshake, a first frame, a pong

  WebSocket(const string& host, const string& port) {
    connect_to(host, port);
    try {
      handshake(host + ":" + port);
    } catch (...) {
      ::close(socket_);
      throw;
    }
  }
  ~WebSocket() { ::close(socket_); }
  WebSocket(const WebSocket&) = delete;
  WebSocket& operator=(const WebSocket&) = delete;

  void send(const string& message) { send_frame(0x2, message); }

  // The next binary message. With `patient`, a server that answers pings may take for ever.
  string receive(bool patient) {
    string message;
    bool begun = false;
    while (true) {
      const Frame frame = read_frame(patient);
      if (frame.opcode == 0x9) {
        send_frame(0xA, frame.payload);
      } else if (frame.opcode == 0x8) {
        answer_close(frame.payload);
      } else if (frame.opcode == 0x1) {
        throw Fatal("the server sent a text frame: " + frame.payload.substr(0, 80));
      } else if (frame.opcode == (begun ? 0x0 : 0x2)) {
        begun = true;
        message += frame.payload;
        if (frame.last) return message;
      } else if (frame.opcode != 0xA) {
        throw Fatal("a WebSocket frame out of order");
      }
    }
  }

  // Say goodbye and wait a moment for the answer.
  void close(int code) {
    try {
      send_frame(0x8, {static_cast<char>(code >> 8), static_cast<char>(code)});
      deadline_ = Clock::now() + std::chrono::seconds(5);
      while (read_frame(false, false).opcode != 0x8) {
      }
    } catch (const std::exception&) {  // gone already, which is as good
    }
  }

 private:
  struct Frame {
    bool last;
    unsigned opcode;
    string payload;
  };

  void connect_to(const string& host, const string& port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found))
      throw Lost(host + ": " + gai_strerror(error));
    for (const addrinfo* at = found; at && socket_ < 0; at = at->ai_next) {
      socket_ = ::socket(at->ai_family, at->ai_socktype, at->ai_protocol);
      if (socket_ >= 0 && ::connect(socket_, at->ai_addr, at->ai_addrlen) != 0) {
        ::close(socket_);
        socket_ = -1;
      }
    }
    freeaddrinfo(found);
    if (socket_ < 0) throw Lost("nothing answers at " + host + ":" + port);
    const int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  void handshake(const string& host) {
    string nonce;
    for (int i = 0; i < 16; ++i) nonce += static_cast<char>(random_());
    const string key = base64(nonce);
    write("GET / HTTP/1.1\r\nHost: " + host +
          "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: " + key +
          "\r\nSec-WebSocket-Version: 13\r\n\r\n");
    deadline_ = Clock::now() + std::chrono::seconds(20);
    size_t end;
    while ((end = buffer_.find("\r\n\r\n")) == string::npos) {
      if (buffer_.size() > 1 << 16) throw Fatal("this is no PlugRL server: it sends no HTTP");
      if (!fill()) throw Lost("no answer to the handshake");
    }
    string head = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    check_status(head);
    const string accept = base64(sha1(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"));
    if (header(head, "sec-websocket-accept") != accept)
      throw Fatal("the server does not accept the WebSocket handshake");
    if (!header(head, "sec-websocket-extensions").empty())
      throw Fatal("the server uses a WebSocket extension that nobody offered");
  }

  static void check_status(const string& head) {
    const string status = head.size() > 12 ? head.substr(9, 3) : "";
    if (head.compare(0, 5, "HTTP/") != 0) throw Fatal("this is no PlugRL server: it sends no HTTP");
    if (status == "401") throw Fatal("the server wants an API key (HTTP 401)");
    if (status == "503") throw Lost("the server is not ready (HTTP 503)");
    if (status != "101") throw Fatal("this is no PlugRL server (HTTP " + status + ")");
  }

  static string header(const string& head, const string& name) {
    string lower = head;
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const size_t at = lower.find("\r\n" + name + ":");
    if (at == string::npos) return "";
    const size_t begin = std::min(head.find_first_not_of(" \t", at + name.size() + 3), head.size());
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }

  void answer_close(const string& payload) {
    Closed closed{1005, ""};
    if (payload.size() >= 2) {
      closed.code = static_cast<uint8_t>(payload[0]) << 8 | static_cast<uint8_t>(payload[1]);
      closed.reason = payload.substr(2);
    }
    send_frame(0x8, payload.substr(0, 2));
    throw closed;
  }

  void send_frame(unsigned opcode, const string& payload) {
    string frame(1, static_cast<char>(0x80 | opcode));
    const uint64_t size = payload.size();
    const int width = size < 126 ? 0 : size < 65536 ? 2 : 8;
    frame += static_cast<char>(0x80 | (width == 0 ? size : width == 2 ? 126 : 127));
    for (int shift = 8 * (width - 1); shift >= 0; shift -= 8)
      frame += static_cast<char>(size >> shift);
    std::array<char, 4> mask{};
    for (char& byte : mask) byte = static_cast<char>(random_());
    frame.append(mask.data(), mask.size());
    for (size_t i = 0; i < payload.size(); ++i)
      frame += static_cast<char>(payload[i] ^ mask[i % 4]);
    write(frame);
  }

  Frame read_frame(bool patient, bool renew = true) {
    if (renew) deadline_ = Clock::now() + std::chrono::seconds(20);
    pinged_ = !patient;
    ensure(2);
    const auto first = static_cast<uint8_t>(buffer_[0]), second = static_cast<uint8_t>(buffer_[1]);
    const size_t width = (second & 0x7f) < 126 ? 0 : (second & 0x7f) == 126 ? 2 : 8;
    ensure(2 + width);
    uint64_t size = second & 0x7f;
    if (width > 0) size = 0;
    for (size_t i = 0; i < width; ++i) size = size << 8 | static_cast<uint8_t>(buffer_[2 + i]);
    const bool control = (first & 0x08) != 0, last = (first & 0x80) != 0;
    if ((first & 0x70) || (second & 0x80) || size >> 40 || (control && (!last || size > 125)))
      throw Fatal("a WebSocket frame that breaks RFC 6455");
    ensure(2 + width + size);
    Frame frame{last, first & 0x0fu, buffer_.substr(2 + width, size)};
    buffer_.erase(0, 2 + width + size);
    return frame;
  }

  void ensure(uint64_t size) {
    while (buffer_.size() < size) {
      if (fill()) continue;
      if (pinged_) throw Lost("the server has gone silent");
      send_frame(0x9, "");  // it may compute for minutes, but it has to answer this
      pinged_ = true;
      deadline_ = Clock::now() + std::chrono::seconds(20);
    }
  }

  // More bytes from the server; false at the deadline.
  bool fill() {
    const double left = Seconds(deadline_ - Clock::now()).count();
    pollfd ready{socket_, POLLIN, 0};
    if (poll(&ready, 1, std::max(0, static_cast<int>(1000 * left))) <= 0) return false;
    std::array<char, 1 << 16> chunk;
    const ssize_t got = ::recv(socket_, chunk.data(), chunk.size(), 0);
    if (got <= 0) throw Lost("the connection broke");
    buffer_.append(chunk.data(), static_cast<size_t>(got));
    deadline_ = Clock::now() + std::chrono::seconds(20);
    return true;
  }

  void write(const string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t sent = ::send(socket_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return;  // the next read tells why: a close frame, or a broken connection
      at += static_cast<size_t>(sent);
    }
  }

  int socket_ = -1;
  string buffer_;
  Clock::time_point deadline_;
  bool pinged_ = false;
  std::random_device random_;
};

// ------------------------------------------------------ the probe environment and the exchange

struct Env {
  size_t index = 0;
  size_t t = 0;
  std::vector<double> a;
  size_t chunks_done = 0;                  // in this episode: the step id
  std::vector<std::vector<double>> chunk;  // steps yet to run, the next one last
  double reward = 0;                       // summed over the chunk

  bool ended() const { return t >= 3 + 2 * (index % 3); }

  void step() {
    a = chunk.back();
    chunk.pop_back();
    ++t;
    reward += 1;
    if (ended()) chunk.clear();
    if (chunk.empty()) ++chunks_done;
  }
  // What a feedback or a close leaves behind: nothing of the chunk, nothing of an ended episode.
  void settle() {
    chunk.clear();
    reward = 0;
    if (!ended()) return;
    t = chunks_done = 0;
    std::fill(a.begin(), a.end(), 0.0);
  }
};

using Envs = std::vector<Env*>;

class Client {
 public:
  Client(string host, string port, size_t envs, size_t max_steps)
      : host_(std::move(host)), port_(std::move(port)), envs_(envs), max_steps_(max_steps) {
    for (size_t i = 0; i < envs; ++i) envs_[i].index = i;
  }

  int run() {
    for (int attempt = 0; attempt <= 20; ++attempt) {
      try {
        WebSocket socket(host_, port_);
        if (converse(socket)) return 0;
      } catch (const Lost& error) {
        say(error.what() + string("; trying again"));
      } catch (const Fatal& error) {
        say(error.what());
        return 1;
      } catch (const Closed& closed) {
        if (closed.code == 1001 && closed.reason == "plugrl-server-stop") {
          say("the server ended the run after " + to_string(steps_) + " steps");
          return 0;
        }
        if (closed.code == 1008) {
          say("the server refused this client: " + closed.reason);
          return 1;
        }
        say("closed with " + to_string(closed.code) + " " + closed.reason + "; reconnecting");
      }
      for (Env& env : envs_) env.settle();
      failures_ = std::min(failures_ + 1, 5);
      std::this_thread::sleep_for(std::chrono::milliseconds(50 << failures_));
    }
    say("gave up after 20 reconnects");
    return 1;
  }

 private:
  static void say(const string& sentence) {
    std::cerr << "probe_client: " << sentence << std::endl;
  }

  // One connection, until the steps are done; everything else is thrown.
  bool converse(WebSocket& socket) {
    try {
      const string frame = socket.receive(false);
      read_metadata(Reader(frame).message());
      say("connected to " + host_ + ":" + port_);
      while (steps_ < max_steps_) turn(socket);
    } catch (const Fatal&) {
      socket.close(1002);
      throw;
    }
    socket.close(1000);
    return true;
  }

  void turn(WebSocket& socket) {
    Envs due, holding, finished;
    for (Env& env : envs_)
      if (env.chunk.empty()) due.push_back(&env);
    socket.send(infer(due));
    const string frame = socket.receive(true);
    take_action(Reader(frame).message(), due);
    failures_ = 0;
    for (Env& env : envs_) holding.push_back(&env);  // every env holds a chunk now
    while (finished.empty()) {
      for (Env* env : holding) {
        env->step();
        if (env->chunk.empty()) finished.push_back(env);
      }
      steps_ += holding.size();
    }
    socket.send(feedback(finished));
    for (Env* env : finished) env->settle();
  }

  void read_metadata(const Value& message) {
    const Value* kind = message.find("message_type");
    const Value* data = message.find("data");
    if (message.kind != Value::Map || !kind)
      throw Fatal("no message_type: the server seems to speak openpi's protocol");
    if (!kind->is_str("metadata") || !data || data->kind != Value::Map)
      throw Fatal("expected metadata, got " + kind->bytes.substr(0, 40));
    const size_t version = declared(*data, "protocol_version");
    horizon_ = declared(*data, "action_horizon");
    dim_ = declared(*data, "action_dim");
    for (const string key : {"server", "server_version", "algorithm", "policy"})
      if (const Value* name = data->find(key))
        if (name->kind != Value::Str) throw Fatal("metadata: " + key + " is no str");
    if (const Value* features = data->find("features")) {
      if (features->kind != Value::List) throw Fatal("metadata: features is no list");
      for (const Value& name : features->items)
        if (name.kind != Value::Str) throw Fatal("metadata: a feature is no str");
    }
    if (version > 1)
      throw Fatal("the server speaks PlugRL version " + to_string(version) +
                  ", this client version 1");
    if (width_ == 0) width_ = dim_ ? dim_ : 1;
  }

  // A positive int of the metadata, plain or as a typed scalar (SPEC 4.34); 0 where it is absent.
  static size_t declared(const Value& data, const string& key) {
    const Value* number = data.find(key);
    if (!number) return 0;
    if (number->find("__npgeneric__", Value::Bin)) number = number->find("data", Value::Bin);
    if (!number || number->kind != Value::Int || number->number < 1)
      throw Fatal("metadata: " + key + " is no positive int");
    return static_cast<size_t>(number->number);
  }

  void take_action(const Value& message, const Envs& due) {
    const Value* kind = message.find("message_type");
    const Value* data = message.find("data");
    if (!kind || !kind->is_str("action") || !data || data->kind != Value::Map)
      throw Fatal("expected an action, got " + (kind ? kind->bytes.substr(0, 40) : "nothing"));
    if (const Value* named = data->find("env_ids")) {
      const Array ids = array_of(named, "env_ids");
      bool same = ids.shape.size() == 1 && ids.numbers.size() == due.size() &&
                  (ids.kind == 'i' || ids.kind == 'u');
      for (size_t row = 0; same && row < due.size(); ++row)
        same = ids.numbers[row] == static_cast<double>(due[row]->index);
      if (!same) throw Fatal("env_ids are not the envs that were asked for");
    }
    const Array action = array_of(data->find("action"), "the action");
    if (action.shape.size() < 2 || action.shape[1] != due.size() || action.numbers.empty())
      throw Fatal("the action has the wrong shape");
    for (const double number : action.numbers)
      if (!std::isfinite(number)) throw Fatal("the action holds a NaN or an infinity");
    const size_t horizon = action.shape[0], rows = due.size();
    width_ = action.numbers.size() / (horizon * rows);
    if ((horizon_ && horizon != horizon_) || (dim_ && width_ != dim_))
      throw Fatal("the action is not as the metadata declares");
    for (size_t row = 0; row < rows; ++row)
      for (size_t k = horizon; k-- > 0;) {  // time-major; the next step goes last
        const double* begin = action.numbers.data() + (k * rows + row) * width_;
        due[row]->chunk.emplace_back(begin, begin + width_);
      }
  }

  void observation(Writer& out, const Envs& envs) const {
    std::vector<double> t, a;
    for (const Env* env : envs) {
      t.push_back(static_cast<double>(env->t));
      for (size_t j = 0; j < width_; ++j) a.push_back(j < env->a.size() ? env->a[j] : 0.0);
    }
    const size_t n = envs.size();
    out.map(3).str("images").map(0).str("states").map(2);
    out.str("t").array("<f8", {n, 1}, packed(t)).str("a").array("<f8", {n, width_}, packed(a));
    out.str("text").array("<U1", {n}, string(4 * n, '\0'));
  }

  static void indices(Writer& out, const Envs& envs, size_t chunk) {
    std::vector<int64_t> ids, steps;
    for (const Env* env : envs) {
      ids.push_back(static_cast<int64_t>(env->index));
      steps.push_back(static_cast<int64_t>(env->chunks_done - chunk));
    }
    out.str("env_indices").array("<i8", {envs.size()}, packed(ids));
    out.str("step_ids").array("<i8", {envs.size()}, packed(steps));
  }

  string infer(const Envs& due) const {
    Writer out;
    out.map(4).str("message_type").str("infer").str("data");
    observation(out, due);
    indices(out, due, 0);
    return out.out;
  }

  string feedback(const Envs& finished) const {
    const size_t m = finished.size();
    std::vector<float> rewards;
    std::vector<uint8_t> terminated;
    for (const Env* env : finished) {
      rewards.push_back(static_cast<float>(env->reward));
      terminated.push_back(env->ended());
    }
    Writer out;
    out.map(4).str("message_type").str("feedback");
    indices(out, finished, 1);
    out.str("data").map(5).str("obs");
    observation(out, finished);
    out.str("rewards").array("<f4", {m}, packed(rewards));
    out.str("terminated").array("|b1", {m}, packed(terminated));
    out.str("truncated").array("|b1", {m}, string(m, '\0'));
    out.str("info").map(0);
    return out.out;
  }

  string host_, port_;
  std::vector<Env> envs_;
  size_t max_steps_, steps_ = 0, width_ = 0;
  size_t horizon_ = 0, dim_ = 0;  // as declared on this connection
  int failures_ = 0;
};

int main(int argc, char** argv) {
  const std::vector<string> args(argv + 1, argv + argc);
  size_t envs = 3, max_steps = std::numeric_limits<size_t>::max();
  try {
    if (args.size() < 2 || args.size() % 2 != 0) throw std::invalid_argument("");
    for (size_t i = 2; i < args.size(); i += 2) {
      const size_t number = std::stoul(args[i + 1]);
      if (args[i] == "--num-envs" && number >= 1 && number <= 1000) envs = number;
      else if (args[i] == "--max-steps" && number >= 1) max_steps = number;
      else throw std::invalid_argument("");
    }
  } catch (const std::exception&) {
    std::cerr << "usage: probe_client HOST PORT [--num-envs 1..1000] [--max-steps N]" << std::endl;
    return 2;
  }
  return Client(args[0], args[1], envs, max_steps).run();
}
