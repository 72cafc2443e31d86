package report

// Band is where the time to first content of a range of requests went.
type Band struct {
	Sentence string `json:"sentence"`
}

// Attribute is to come.
func Attribute([]Row) []Band { return nil }
