package jinja

import (
	"fmt"
	"strings"
	"time"
)

// strftime is Python's datetime.strftime of a time without a zone, in the C
// locale, with the C library's extensions that templates use (`%-d`).
func strftime(t time.Time, format string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		flag := byte(0)
		if strings.IndexByte("-_0^", format[i]) >= 0 && i+1 < len(format) {
			flag = format[i]
			i++
		}
		s, ok := directive(t, format[i], flag)
		if !ok {
			return "", errorf(KindUnsupported, "strftime_now: the directive %%%c is not supported", format[i])
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

// directive formats one strftime directive.
func directive(t time.Time, c, flag byte) (string, bool) {
	num := func(n, width int, pad byte) (string, bool) {
		switch flag {
		case '-':
			return fmt.Sprintf("%d", n), true
		case '_':
			pad = ' '
		case '0':
			pad = '0'
		}
		if pad == ' ' {
			return fmt.Sprintf("%*d", width, n), true
		}
		return fmt.Sprintf("%0*d", width, n), true
	}
	if l := layout(c); l != "" {
		text := t.Format(l)
		if flag == '^' {
			text = strings.ToUpper(text)
		}
		return text, true
	}
	hour12 := (t.Hour()+11)%12 + 1
	isoYear, isoWeek := t.ISOWeek()
	switch c {
	case 'C':
		return num(t.Year()/100, 2, '0')
	case 'd':
		return num(t.Day(), 2, '0')
	case 'e':
		return num(t.Day(), 2, ' ')
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), true
	case 'G':
		return num(isoYear, 4, '0')
	case 'g':
		return num(isoYear%100, 2, '0')
	case 'H':
		return num(t.Hour(), 2, '0')
	case 'I':
		return num(hour12, 2, '0')
	case 'j':
		return num(t.YearDay(), 3, '0')
	case 'k':
		return num(t.Hour(), 2, ' ')
	case 'l':
		return num(hour12, 2, ' ')
	case 'm':
		return num(int(t.Month()), 2, '0')
	case 'M':
		return num(t.Minute(), 2, '0')
	case 'n':
		return "\n", true
	case 'S':
		return num(t.Second(), 2, '0')
	case 't':
		return "\t", true
	case 'u':
		return num((int(t.Weekday())+6)%7+1, 1, '0')
	case 'U':
		return num((t.YearDay()+6-int(t.Weekday()))/7, 2, '0')
	case 'V':
		return num(isoWeek, 2, '0')
	case 'w':
		return num(int(t.Weekday()), 1, '0')
	case 'W':
		return num((t.YearDay()+6-(int(t.Weekday())+6)%7)/7, 2, '0')
	case 'y':
		return num(t.Year()%100, 2, '0')
	case 'Y':
		// The C library does not pad the year.
		return num(t.Year(), 1, '0')
	case 'z', 'Z':
		// The time has no zone.
		return "", true
	case '%':
		return "%", true
	}
	return "", false
}

// layout returns the directives that are one of Go's time layouts.
func layout(c byte) string {
	switch c {
	case 'a':
		return "Mon"
	case 'A':
		return "Monday"
	case 'b', 'h':
		return "Jan"
	case 'B':
		return "January"
	case 'c':
		return "Mon Jan _2 15:04:05 2006"
	case 'D', 'x':
		return "01/02/06"
	case 'F':
		return "2006-01-02"
	case 'p':
		return "PM"
	case 'P':
		return "pm"
	case 'r':
		return "03:04:05 PM"
	case 'R':
		return "15:04"
	case 'T', 'X':
		return "15:04:05"
	}
	return ""
}
