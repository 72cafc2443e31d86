package shared

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// Location is where a store is and how to sign in there.
type Location struct {
	Address  string // HOST:PORT
	TLS      bool
	User     string
	Password string
	Database int
}

// mostDatabase is far above what servers have.
const mostDatabase = 1 << 16

// ParseLocation reads redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], or rediss:// for TLS.
func ParseLocation(s string) (l Location, err error) {
	u, err := url.Parse(s)
	var wrong *url.Error
	switch {
	case errors.As(err, &wrong): // without the text, which may have a password
		return l, fmt.Errorf("it is no URL (%w); want redis://HOST:PORT", wrong.Err)
	case err != nil:
		return l, err
	case u.Scheme != "redis" && u.Scheme != "rediss":
		return l, fmt.Errorf("want redis://HOST:PORT, or rediss://HOST:PORT for TLS")
	case u.Hostname() == "":
		return l, fmt.Errorf("it names no host; want %s://HOST:PORT", u.Scheme)
	case u.RawQuery != "" || u.Fragment != "":
		return l, fmt.Errorf("it has a query or a fragment, which mean nothing here; want %s://HOST:PORT/DATABASE", u.Scheme)
	}
	port := u.Port()
	if port == "" {
		port = "6379"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return l, fmt.Errorf("its port %s is none from 1 to 65535", port)
	}
	l = Location{Address: net.JoinHostPort(u.Hostname(), port), TLS: u.Scheme == "rediss", User: u.User.Username()}
	l.Password, _ = u.User.Password()
	if l.User != "" && l.Password == "" {
		return l, fmt.Errorf("it has a user without a password; want %s://USER:PASSWORD@HOST, or %s://:PASSWORD@HOST for the default user", u.Scheme, u.Scheme)
	}
	if name := strings.Trim(u.Path, "/"); name != "" {
		if l.Database, err = strconv.Atoi(name); err != nil || l.Database < 0 || l.Database > mostDatabase {
			return l, fmt.Errorf("its path %s is no number of a database; want /0 or another number", u.Path)
		}
	}
	return l, nil
}

// String names the store without its password.
func (l Location) String() string {
	scheme, database := "redis", ""
	if l.TLS {
		scheme = "rediss"
	}
	if l.Database != 0 {
		database = "/" + strconv.Itoa(l.Database)
	}
	return scheme + "://" + l.Address + database
}
