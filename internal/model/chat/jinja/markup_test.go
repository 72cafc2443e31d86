package jinja

import "testing"

// The results of filters that keep markup: a plain string put before it is escaped then. The
// expected values are those of Jinja2 3.1.
func TestFiltersOfMarkup(t *testing.T) {
	for _, c := range []struct{ filter, want string }{
		{`title`, `<&lt;a B&gt;`},
		{`capitalize`, `&lt;&lt;a b&gt;`},
		{`upper`, `&lt;&LT;A B&GT;`},
		{`lower`, `&lt;&lt;a b&gt;`},
		{`trim`, `&lt;&lt;a b&gt;`},
		{`center(20)`, `&lt;    &lt;a b&gt;     `},
		{`indent`, `&lt;&lt;a b&gt;`},
		{`replace('a','b')`, `<&lt;b b&gt;`},
		{`reverse`, `&lt;;tg&b a;tl&`},
		{`truncate(3)`, `&lt;...`},
		{`truncate(3, true, '>')`, `&lt;&l&gt;`},
		{`string`, `&lt;&lt;a b&gt;`},
		{`first`, `<&`},
		{`last`, `&lt;;`},
		{`urlencode`, `<%26lt%3Ba%20b%26gt%3B`},
		{`default('x')`, `&lt;&lt;a b&gt;`},
		{`join`, `<&lt;a b&gt;`},
		{`e`, `&lt;&lt;a b&gt;`},
	} {
		got, err := render(t, "{{ '<' + ((u|e)|"+c.filter+") }}", `{"u":"<a b>"}`)
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.filter, got, err, c.want)
		}
	}
}
