package admission

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/tenancy"
	"weir/test/clocktest"
)

// A budget holds the sum of what is in, never above its limit but by one body alone,
// large bodies never in its last eighth, and 0 at rest.
func TestBodiesConserve(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(0, 1<<20).Draw(t, "limit")
		b := NewBodies(limit, nil)
		var in []*Body
		sum := int64(0)
		enter := func(s *Body, size int64) {
			old, others := s.size, sum-s.size
			err := s.Grow(size, time.Unix(0, 0))
			room := limit
			if size > SmallBody {
				room = limit - limit/8
			}
			full := limit > 0 && size > old && others > 0 && others+size > room
			if (err != nil) != full {
				t.Fatalf("grew from %d to %d beside %d of %d: %v", old, size, others, limit, err)
			}
			if err == nil {
				sum = others + max(old, size)
			} else if e := infer.AsError(err); e.Code != infer.CodeOverloaded || e.RetryAfter == 0 {
				t.Fatalf("refused with %v", err)
			}
		}
		for range rapid.IntRange(1, 50).Draw(t, "ops") {
			size := rapid.Int64Range(0, 1<<18).Draw(t, "size")
			switch i := rapid.IntRange(0, max(2, len(in)-1)).Draw(t, "i"); rapid.IntRange(0, 2).Draw(t, "op") {
			case 0:
				s := &Body{bodies: b, share: &share{holder: b.used.Holder(tenancy.Anyone, 0)}}
				in = append(in, s)
				enter(s, size)
			case 1:
				if i < len(in) {
					enter(in[i], size)
				}
			default:
				if i < len(in) {
					sum -= in[i].size
					in[i].Leave()
					in[i].Leave() // only the first counts
					in = append(in[:i], in[i+1:]...)
				}
			}
			if b.Used() != sum {
				t.Fatalf("holds %d, want %d", b.Used(), sum)
			}
		}
		for _, s := range in {
			s.Leave()
		}
		if b.Used() != 0 {
			t.Fatalf("at rest: %d", b.Used())
		}
	})
}

// Large bodies leave room for small ones.
func TestSmallBodiesEnterBesideLargeOnes(t *testing.T) {
	b := NewBodies(8<<20, nil)
	for range 7 {
		if _, err := b.Enter(tenancy.Anyone, 1<<20, time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Enter(tenancy.Anyone, SmallBody+1, time.Time{}); err == nil {
		t.Error("a large body is in the last eighth")
	}
	if _, err := b.Enter(tenancy.Anyone, SmallBody, time.Time{}); err != nil {
		t.Error(err)
	}
}

// A declared body that does not come keeps nobody out: where another request would be refused, the
// declared one keeps only the room that it has filled. It gets the rest again once there is room. A
// body that comes in time keeps its room in any case.
func TestDeclaredBodies(t *testing.T) {
	const mib = 1 << 20
	b := NewBodies(8*mib, nil)
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	declare := func(when float64) (*Body, error) {
		s, err := b.Declare(tenancy.Anyone, 3*mib, mib, at(when))
		return &s, err
	}
	honest, err := declare(0)
	if err != nil {
		t.Fatal(err)
	}
	silent, err := declare(0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := declare(0.9); err == nil {
		t.Fatal("a third is in before the others had their time to begin")
	}
	honest.Came(mib, mib)
	silent.Came(1000, SmallBody/2)
	third, err := declare(1.9)
	if err != nil {
		t.Fatalf("a third beside one that does not come: %v", err)
	}
	if want := int64(6*mib + SmallBody); b.Used() != want || honest.size != 3*mib || silent.size != SmallBody {
		t.Fatalf("%d bytes are held, want %d; of the honest %d, of the silent %d", b.Used(), want, honest.size, silent.size)
	}
	if err := silent.Grow(2*SmallBody, at(2)); err == nil && b.Used() > 7*mib {
		t.Errorf("%d bytes are held", b.Used())
	}
	third.Leave()
	if err := silent.Grow(3*SmallBody, at(2)); err != nil || silent.size != 3*mib {
		t.Errorf("with room again the silent one has %d bytes: %v", silent.size, err)
	}
	honest.Came(3*mib, 3*mib)
	for _, s := range []*Body{honest, silent} {
		s.Leave()
	}
	if b.Used() != 0 || len(b.declared) != 0 {
		t.Errorf("at rest %d bytes are held, of %d", b.Used(), len(b.declared))
	}
}

// A tenant leaves room for another one for a minute after that one was there, also if the wall clock is
// set by hours meanwhile.
func TestBodiesClockIsSet(t *testing.T) {
	other := &tenancy.Caller{Tenant: "other", Band: tenancy.Anyone.Band, Share: 1}
	for _, by := range []time.Duration{0, 5 * time.Hour, -5 * time.Hour} {
		for after, want := range map[time.Duration]int{10 * time.Second: 14, 2 * time.Minute: 16} {
			b, now := NewBodies(16*SmallBody, nil), time.Now()
			for _, who := range []*tenancy.Caller{other, tenancy.Anyone} {
				s, err := b.Enter(who, SmallBody, now)
				if err != nil {
					t.Fatal(err)
				}
				s.Leave()
			}
			n := 0
			for ; n < 100; n++ {
				if _, err := b.Enter(tenancy.Anyone, SmallBody, clocktest.Set(now.Add(after), by)); err != nil {
					break
				}
			}
			if n != want {
				t.Errorf("%v after another tenant, with the clock set by %v: %d bodies, want %d", after, by, n, want)
			}
		}
	}
}
