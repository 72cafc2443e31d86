package disk

// The most bytes of operators' files, by their kind. docs/operating.md has them.
const (
	MaxConfig   = 1 << 20   // a configuration file, or an experiment
	MaxKeys     = 32 << 20  // a keys file
	MaxList     = 16 << 20  // a list of engines
	MaxBudgets  = 256 << 20 // a file of used budgets
	MaxSecret   = 64 << 10  // a key in a file of its own
	MaxPEM      = 1 << 20   // certificates or a private key
	MaxTable    = 16 << 20  // a cost table
	MaxReport   = 256 << 20 // a report of weir bench
	MaxImage    = 64 << 20  // an image that weir bench sends
	MaxText     = 64 << 20  // a text to tokenize, or the body of a request
	MaxSettings = 1 << 20   // a small file of a model's folder, or of an engine
)
