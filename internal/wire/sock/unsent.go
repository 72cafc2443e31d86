package sock

// Unsent is how many bytes the kernel takes for a peer that does not read, where LimitUnsent can
// say so. Otherwise it takes up to 4 MiB (net.ipv4.tcp_wmem): a writer learns that late that
// nobody reads, and thousands of such peers cost the kernel as much memory.
const Unsent = 128 << 10
