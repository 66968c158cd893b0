/* The bytes of a text as a number, the first one lowest. */
static uint64_t word(const char *at, int n) {
  uint64_t x = 0;
  while (n--) x = x << 8 | (unsigned char)at[n];
  return x;
}

static uint64_t turned(uint64_t x, int n) { return x >> n | x << (64 - n); }

static uint64_t mixed(uint64_t x) { return x ^ x >> 47; }

#define K0 UINT64_C(0xc3a5c85c97cb3127)
#define K1 UINT64_C(0xb492b66fbe98f273)
#define K2 UINT64_C(0x9ae16a3b2f90404f)
#define K3 UINT64_C(0xc949d7c7509e6557)
#define KM UINT64_C(0x9ddfea08eb382d69)

static uint64_t of_two(uint64_t u, uint64_t v) {
  return mixed((v ^ mixed((u ^ v) * KM)) * KM) * KM;
}

/* Mixes 32 bytes with x and y. */
static void weak(const char *at, uint64_t x, uint64_t y, uint64_t *to) {
  uint64_t first = x + word(at, 8), last = word(at + 24, 8);
  y = turned(y + first + last, 21);
  x = first + word(at + 8, 8) + word(at + 16, 8);
  to[0] = x + last;
  to[1] = y + turned(x, 44) + first;
}

static void part(uint64_t a, uint64_t z, const char *p, const char *q, uint64_t *to) {
  uint64_t c = turned(a, 37), d = turned(a + z, 52);
  a += word(p, 8);
  c += turned(a, 7);
  a += word(q, 8);
  to[0] = a + z;
  to[1] = d + turned(a, 31) + c;
}

/* CityHash64, release 1.0: CatBoost keeps 32 bits. */
static uint64_t city(const char *s) {
  uint64_t n = strlen(s), v[2], w[2];
  const char *end = s + n;
  if (n == 0) return K2;
  if (n < 4) {
    uint64_t y = word(s, 1) + (word(s + n / 2, 1) << 8);
    return mixed(y * K2 ^ (n + (word(end - 1, 1) << 2)) * K3) * K2;
  }
  if (n <= 8) return of_two(n + (word(s, 4) << 3), word(end - 4, 4));
  if (n <= 16) {
    uint64_t last = word(end - 8, 8);
    return of_two(word(s, 8), turned(last + n, (int)n)) ^ last;
  }
  if (n <= 32) {
    uint64_t a = word(s, 8) * K1, b = word(s + 8, 8);
    uint64_t c = word(end - 8, 8) * K2, d = word(end - 16, 8) * K0;
    return of_two(turned(a - b, 43) + turned(c, 30) + d,
                  a + turned(b ^ K3, 20) - c + n);
  }
  if (n <= 64) {
    part(word(s, 8) + (word(end - 16, 8) + n) * K0, word(s + 24, 8), s + 8, s + 16, v);
    part(word(s + 16, 8) + word(end - 32, 8), word(end - 8, 8), end - 24, end - 16, w);
    return mixed(mixed((v[0] + w[1]) * K2 + (w[0] + v[1]) * K0) * K0 + v[1]) * K2;
  }
  uint64_t x = word(s, 8), y = word(end - 16, 8) ^ K1, z = word(end - 56, 8) ^ K0, swap;
  weak(end - 64, n, y, v);
  weak(end - 32, n * K1, K0, w);
  z += mixed(v[1]) * K1;
  x = turned(z + x, 39) * K1;
  y = turned(y, 33) * K1;
  for (end = s + ((n - 1) & ~UINT64_C(63)); s < end; s += 64) {
    x = turned(x + y + v[0] + word(s + 16, 8), 37) * K1;
    y = turned(y + v[1] + word(s + 48, 8), 42) * K1;
    x ^= w[1];
    y ^= v[0];
    z = turned(z ^ w[0], 33);
    weak(s, v[1] * K1, x + w[0], v);
    weak(s + 32, z + w[1], y, w);
    swap = z;
    z = x;
    x = swap;
  }
  return of_two(of_two(v[0], w[0]) + mixed(y) * K1 + z, of_two(v[1], w[1]) + x);
}

static int part_is_set(int64_t part, float x, uint32_t hash) {
  float border;
  memcpy(&border, &part_value[part], sizeof border);
  switch (part_kind[part]) {
    case 1: return x > border;
    case 2: return !(x <= border);
    default: return hash == part_value[part];
  }
}

int ${name}_encode(int64_t n_rows, const float *numbers, const char *const *texts,
    float *rows) {
  if (n_rows < 0) return 2;
  if (n_rows == 0) return 0;
  if (!numbers || !texts || !rows) return 1;
  for (int64_t i = 0; i < n_rows; i++, rows += ${n_features}) {
    memcpy(rows, numbers + i * ${n_columns}, ${n_columns} * sizeof *rows);
    for (int c = 0; c < ${n_columns}; c++) {
      if (!is_category[c]) continue;
      if (!*texts) return 1;
      uint32_t hash = (uint32_t)city(*texts++);
      memcpy(rows + c, &hash, sizeof hash);
    }
    const uint8_t *from = bucket;
    for (int c = 0; c < ${n_combinations}; c++) {
      uint64_t sought = 0;
      for (int64_t p = part_offset[c]; p < part_offset[c + 1]; p++) {
        uint32_t hash;
        memcpy(&hash, rows + part_column[p], sizeof hash);
        uint64_t value = part_kind[p] ? (uint64_t)part_is_set(p, rows[part_column[p]], hash)
                                      : (hash ^ UINT64_C(0x80000000)) - 0x80000000u;
        sought = (sought + value * UINT64_C(${multiplier})) * UINT64_C(${multiplier});
      }
      int64_t low = key_offset[c], high = key_offset[c + 1];
      int64_t first = low, n_keys = high - low;
      while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (key[middle] < sought) low = middle + 1;
        else high = middle;
      }
      int is_known = low < key_offset[c + 1] && key[low] == sought;
      int64_t begin = statistic_offset[c], width = statistic_offset[c + 1] - begin;
      const uint8_t *its = from + (is_known ? low - first : n_keys) * width;
      for (int64_t k = 0; k < width; k++) rows[${n_columns} + begin + k] = its[k];
      from += (n_keys + 1) * width;
    }
  }
  return 0;
}

