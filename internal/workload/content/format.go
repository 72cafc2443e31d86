package content

import (
	"fmt"
	"strings"
)

// formats are the formats that can be written, each from its draws. All texts of a format
// have the same length, so whether it fits minLength and maxLength is checked once, when a
// schema is compiled.
var formats = map[string]func(draw func(int) int) string{
	"date":      date,
	"time":      clock,
	"date-time": func(draw func(int) int) string { return date(draw) + "T" + clock(draw) },
	"duration":  func(draw func(int) int) string { return fmt.Sprintf("P%dDT%dH", 1+draw(9), 1+draw(9)) },
	"email":     func(draw func(int) int) string { return letters(draw, 6) + "@" + letters(draw, 6) + ".example" },
	"hostname":  func(draw func(int) int) string { return letters(draw, 8) + ".example" },
	"uri":       func(draw func(int) int) string { return "https://" + letters(draw, 6) + ".example/" + letters(draw, 6) },
	"uuid":      uuid,
	"ipv4": func(draw func(int) int) string {
		return fmt.Sprintf("192.0.2.%d", 100+draw(155)) // of the range for documents
	},
	"ipv6": func(draw func(int) int) string { return fmt.Sprintf("2001:db8::%x", 0x1000+draw(0xefff)) },
}

func formatNames() string {
	return "date, time, date-time, duration, email, hostname, uri, uuid, ipv4, ipv6"
}

func date(draw func(int) int) string {
	return fmt.Sprintf("%04d-%02d-%02d", 2000+draw(40), 1+draw(12), 1+draw(28))
}

func clock(draw func(int) int) string {
	return fmt.Sprintf("%02d:%02d:%02dZ", draw(24), draw(60), draw(60))
}

func letters(draw func(int) int, n int) string {
	var b strings.Builder
	for range n {
		b.WriteByte(byte('a' + draw(26)))
	}
	return b.String()
}

// uuid writes a random one (version 4).
func uuid(draw func(int) int) string {
	return fmt.Sprintf("%08x-%04x-4%03x-%x%03x-%06x%06x", draw(1<<31), draw(1<<16), draw(1<<12), 8+draw(4), draw(1<<12), draw(1<<24), draw(1<<24))
}
