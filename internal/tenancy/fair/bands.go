package fair

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"weir/internal/tenancy"
)

// Default is the band of callers that are given none.
const Default = "default"

// Bands are the shares of bands, by their names. A band that is not named has a share of 1.
type Bands map[string]float64

// The bounds of a band's share and name, and of how many there are.
const (
	leastShare, mostShare = 1e-3, 1e6
	mostBands             = 100
)

// Share is the share of a band.
func (b Bands) Share(name string) float64 {
	if s, ok := b[name]; ok {
		return positive(s)
	}
	return 1
}

func positive(share float64) float64 {
	if share > 0 && !math.IsInf(share, 0) {
		return share
	}
	return 1
}

// named is the name of a band, for what is kept of it.
type named string

func (n named) is(name string) bool { return string(n) == name }

// ofBand returns the element of a list that belongs to a band. If there is none, it adds the
// one that first makes. There are few bands.
func ofBand[T interface{ is(name string) bool }](list *[]T, name string, first func() T) T {
	for _, t := range *list {
		if t.is(name) {
			return t
		}
	}
	t := first()
	*list = append(*list, t)
	return t
}

// ParseBands reads bands as name=share.
func ParseBands(words []string) (Bands, error) {
	if len(words) > mostBands {
		return nil, fmt.Errorf("%d bands; there can be %d", len(words), mostBands)
	}
	bands := Bands{}
	for _, word := range words {
		name, number, ok := strings.Cut(word, "=")
		if !ok {
			return nil, fmt.Errorf("%q is no band; give its name and share, as interactive=3", word)
		}
		if err := tenancy.CheckName(name); err != nil {
			return nil, fmt.Errorf("the band %q: %w", word, err)
		}
		share, err := strconv.ParseFloat(number, 64)
		if err != nil || !(share >= leastShare && share <= mostShare) {
			return nil, fmt.Errorf("the share of band %s is %q; give a number from %v to %v", name, number, leastShare, mostShare)
		}
		if _, twice := bands[name]; twice {
			return nil, fmt.Errorf("band %s is given twice", name)
		}
		bands[name] = share
	}
	return bands, nil
}
