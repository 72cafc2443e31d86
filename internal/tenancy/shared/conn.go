package shared

import (
	"context"
	"crypto/tls"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"weir/internal/infer"
	"weir/internal/tenancy"
)

//go:embed admit.lua
var admitSource string

//go:embed enroll.lua
var enrollSource string

var (
	admitScript  = redis.NewScript(1, admitSource)
	enrollScript = redis.NewScript(1, enrollSource)
)

// silence is how long a gateway may be silent before its requests under way no longer count.
const silence = 10 * time.Second

// connection speaks with the store. A panic in the client library, or while an answer is read, is
// an error of the connection.
type connection struct {
	redis    redis.Conn
	id       string
	prefix   string
	panicked func(*infer.Panic)
}

// dial connects and signs in, and leaves the scripts at the server.
func (o *Options) dial(ctx context.Context, id string, patience time.Duration) (_ *connection, err error) {
	defer infer.Catch(&err, o.Panicked)
	l := &o.Location
	options := []redis.DialOption{
		redis.DialContextFunc(func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			c, err := o.connect(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &replies{Conn: c}, nil
		}),
		redis.DialReadTimeout(patience), redis.DialWriteTimeout(patience),
		redis.DialUsername(l.User), redis.DialPassword(l.Password), redis.DialDatabase(l.Database),
	}
	c, err := redis.DialContext(ctx, "tcp", l.Address, options...)
	if err != nil {
		return nil, err
	}
	out := &connection{c, id, o.Prefix, o.Panicked}
	if err := out.load(); err != nil {
		c.Close()
		return nil, err
	}
	return out, nil
}

// connect makes the connection below the client library, with TLS if the location has it.
func (o *Options) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAlive: 15 * time.Second}
	if o.Location.TLS {
		return (&tls.Dialer{NetDialer: &d, Config: o.TLS()}).DialContext(ctx, network, addr)
	}
	return d.DialContext(ctx, network, addr)
}

func (c *connection) load() error {
	if err := admitScript.Load(c.redis); err != nil {
		return err
	}
	return enrollScript.Load(c.redis)
}

func (c *connection) close() { c.redis.Close() }

// forgotten reports whether a server no longer has a script.
func forgotten(err error) bool {
	var e redis.Error
	return errors.As(err, &e) && strings.HasPrefix(string(e), "NOSCRIPT")
}

// enroll reports that this gateway is there, or leaves. It returns how many there are.
func (c *connection) enroll(leaves bool) (gateways int, err error) {
	defer infer.Catch(&err, c.panicked)
	gone := 0
	if leaves {
		gone = 1
	}
	return redis.Int(enrollScript.Do(c.redis, c.prefix+"gateways", c.id, silence.Microseconds(), gone))
}

// exchange carries calls to the store in one round trip. After an error some may have an answer.
func (c *connection) exchange(calls []*carried) (err error) {
	defer infer.Catch(&err, c.panicked)
	pending, again := calls, false
	for {
		for _, x := range pending {
			if err := c.send(x); err != nil {
				return err
			}
		}
		if err := c.redis.Flush(); err != nil {
			return err
		}
		var missing []*carried
		for _, x := range pending {
			reply, err := redis.Int64s(c.redis.Receive())
			switch {
			case forgotten(err) && !again:
				missing = append(missing, x)
			case err != nil:
				return err
			default:
				if err := x.read(reply); err != nil {
					return err
				}
			}
		}
		if len(missing) == 0 {
			return nil
		}
		if err := c.load(); err != nil {
			return err
		}
		pending, again = missing, true
	}
}

// carried is a call on its way.
type carried struct {
	share  *tenancy.Share
	call   *tenancy.Call
	answer tenancy.Answer
	done   bool // it has an answer
}

func (c *connection) send(x *carried) error {
	k := x.call
	return admitScript.SendHash(c.redis, c.prefix+"limits:"+x.share.Name, c.id, silence.Microseconds(),
		k.Limits.Requests, k.Limits.RequestsPerMinute, k.Limits.TokensPerMinute, k.Limits.TokensPerDay,
		k.Running, k.Want, k.Took, k.Paid, k.Day, k.Epoch, k.Total)
}

// read takes the answer of the script.
func (x *carried) read(n []int64) error {
	if len(n) != 10 {
		return fmt.Errorf("the store's answer has %d numbers; another program may use its keys, give --limits-prefix", len(n))
	}
	l := &x.call.Limits
	x.answer = tenancy.Answer{Granted: n[0], Others: n[3], Requests: float64(n[4]) / 1000, Tokens: float64(n[5]) / 1000, Used: n[6], Day: n[7], Epoch: n[8], Total: n[9]}
	after := time.Duration(n[2]) * time.Microsecond
	switch n[1] {
	case 1:
		x.answer.Refusal = tenancy.Refusal{Reason: tenancy.OverRequests, Limit: l.Requests}
	case 2:
		x.answer.Refusal = tenancy.Refusal{Reason: tenancy.OverTokensPerDay, Limit: l.TokensPerDay, After: after}
	case 3:
		x.answer.Refusal = tenancy.Refusal{Reason: tenancy.OverTokensPerMinute, Limit: l.TokensPerMinute, After: after}
	case 4:
		x.answer.Refusal = tenancy.Refusal{Reason: tenancy.OverRequestsPerMinute, Limit: l.RequestsPerMinute, After: after}
	}
	if n[0] < x.call.Want && n[1] == 0 || n[0] < 0 || n[0] > x.call.Want {
		return fmt.Errorf("the store grants %d of %d requests without a reason", n[0], x.call.Want)
	}
	x.done = true
	return nil
}
