package plane

import (
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"weir/internal/engine/plane/planepb"
	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/conns"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/vocab"
	"weir/internal/trace"
)

// sessions are the open sessions of the plane.
type sessions struct {
	mu   sync.Mutex
	byID map[uint64]*session
}

// open opens a session for a gateway that is connected by c.
func (p *Server) open(id uint64, c *conns.Conn) (*session, error) {
	t := &p.sessions
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[id] != nil {
		return nil, status.Errorf(codes.AlreadyExists, "session %x is open; choose another id", id)
	}
	s := &session{plane: p, id: id, conn: c, slots: map[uint32]*slotJob{}}
	s.box = engine.NewOutbox(p.limit, s.breakConn)
	p.run.Sessions(1)
	t.byID[id] = s
	return s, nil
}

// get returns an open session, or nil.
func (t *sessions) get(id uint64) *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// Held returns how many slots of a session are taken, and how many requests of it have no answer.
func (p *Server) Held(id uint64) (slots, owed int) {
	s := p.sessions.get(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.slots), s.owed
}

// session is one gateway's Steps stream and all requests that were submitted under it.
//
// Its writer is the goroutine of the Steps call. A gateway that reads more slowly than the
// engine steps gets the results of several steps merged into one message, with a slot's ids
// next to each other. A gateway that does not read at all fills the outbox to its limit;
// then its connection is reset, because there is no other way to end a write that flow
// control blocks.
type session struct {
	plane *Server
	id    uint64
	conn  *conns.Conn // nil where the transport hides it
	box   engine.Outbox

	mu      sync.Mutex
	closed  bool
	slots   map[uint32]*slotJob // by the gateway's slot
	byIndex []*slotJob          // by the box's slot
	free    []uint32            // unused places of byIndex
	faulty  int                 // of slots, those a fault was drawn for
	scored  int                 // of slots, those that asked for log probabilities
	owed    int                 // of slots, those whose answer is due among the notices
	answers []*planepb.Notice   // that go with the next step

	// The writer's.
	sequence uint64
	taken    engine.Batch
	step     planepb.Step
	group    grouping
	stray    bool         // the next step also names straySlot
	cut      *conns.Shape // of the write that the next step is in
	failed   []*slotJob   // given up in this step
	dead     int          // of byIndex, those given up that the core is not done with
}

// straySlot is one that no gateway gives out.
const straySlot = 1 << 31

// rawStep is a message sent as these very bytes.
type rawStep []byte

// rawCodec sends raw steps, and everything else as gRPC's own codec does.
type rawCodec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.(rawStep); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// overLimit is more than a gateway takes for a step.
const overLimit = 17 << 20

// padding returns a field that no step has, of at least n bytes.
func padding(n int) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, n))
}

// slotJob is a request of a session.
type slotJob struct {
	engine.Job
	wire     uint32 // the gateway's slot
	id       string
	fault    sim.Fault
	faulty   bool
	drips    bool   // the connection, because of its fault
	top      int    // alternatives of each id; -1: no log probabilities
	prompted uint32 // tokens of a prompt with media; 0: it has none
	dead     bool   // it was given up; the gateway may use its slot again
	owed     bool   // it came by Submissions, and has no answer yet
	created  int64  // when it came
}

// reserve takes a slot for a request.
func (s *session) reserve(wire uint32, id string, seed int64, top int, f sim.Fault, faulty bool, way way) (*slotJob, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, status.Errorf(codes.FailedPrecondition, "session %x has ended", s.id)
	}
	if s.slots[wire] != nil {
		return nil, status.Errorf(codes.AlreadyExists, "slot %d is in use", wire)
	}
	j := &slotJob{Job: engine.Job{Box: &s.box, Seed: seed}, wire: wire, id: id, top: top, fault: f, faulty: faulty, owed: way.batched, created: way.created}
	if j.owed {
		s.owed++
	}
	if n := len(s.free); n > 0 {
		j.Slot = s.free[n-1]
		s.free = s.free[:n-1]
		s.byIndex[j.Slot] = j
	} else {
		j.Slot = uint32(len(s.byIndex))
		s.byIndex = append(s.byIndex, j)
	}
	s.slots[wire] = j
	if faulty {
		s.faulty++
	}
	if top >= 0 {
		s.scored++
	}
	return j, nil
}

// release frees a request's slot.
func (s *session) release(j *slotJob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLocked(j)
}

func (s *session) releaseLocked(j *slotJob) {
	if j.drips {
		s.conn.Mold(nil)
	}
	if j.dead {
		s.dead--
	} else {
		delete(s.slots, j.wire)
	}
	s.byIndex[j.Slot] = nil
	s.free = append(s.free, j.Slot)
	if j.faulty {
		s.faulty--
	}
	if j.top >= 0 {
		s.scored--
	}
	if j.owed {
		s.owed--
	}
}

// answer answers a request that came by Submissions, unless its first ids have done so. Before
// it the gateway does not use the slot again.
func (s *session) answer(j *slotJob) {
	s.mu.Lock()
	if j.owed {
		s.answers = append(s.answers, s.accepted(j))
	}
	s.mu.Unlock()
	s.box.Signal()
}

// accepted is the answer to a request that is due.
func (s *session) accepted(j *slotJob) *planepb.Notice {
	j.owed = false
	s.owed--
	return &planepb.Notice{Slot: j.wire, Accepted: &planepb.SubmitReply{ServerCreated: uint64(j.created)}}
}

// refuse answers a request that came by Submissions and does not run.
func (s *session) refuse(wire uint32, why error) {
	st := status.Convert(why)
	s.mu.Lock()
	s.answers = append(s.answers, &planepb.Notice{Slot: wire, Refused: &planepb.Refusal{Code: uint32(st.Code()), Message: st.Message()}})
	s.mu.Unlock()
	s.box.Signal()
}

// find returns the request of a slot if its id matches.
func (s *session) find(wire uint32, id string) *slotJob {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.slots[wire]; j != nil && j.id == id {
		return j
	}
	return nil
}

// close ends the session and aborts its remaining requests.
func (s *session) close() {
	open := &s.plane.sessions
	open.mu.Lock()
	delete(open.byID, s.id)
	s.plane.run.Sessions(-1)
	open.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, j := range s.slots {
		s.plane.run.Abort(&j.Job)
	}
}

// breakConn resets the gateway's connection.
func (s *session) breakConn() {
	if s.conn != nil {
		s.conn.Reset()
	}
}

// write sends all pending results. over reports whether the session ends, and err how.
func (s *session) write(stream grpc.ServerStreamingServer[planepb.Step]) (over bool, err error) {
	results := s.box.Take(&s.taken)
	s.mu.Lock()
	if !results && len(s.answers) == 0 {
		s.mu.Unlock()
		return false, nil
	}
	broken := s.encode()
	s.mu.Unlock()
	if !results {
		s.step.Running, s.step.Waiting = s.plane.run.Busy()
	}

	s.sequence++
	s.step.Sequence = s.sequence
	s.step.SendTime = uint64(trace.Now())
	messages := []any{&s.step}
	switch broken {
	case sim.Skip:
		messages = nil
	case sim.Repeat:
		messages = append(messages, &s.step)
	case sim.Cut, sim.Truncate, sim.Reset:
		if len(s.taken.Slot) == 0 {
			messages = nil
		}
	case sim.Swap:
		// The next step is not known yet: an empty one takes its place.
		messages = []any{&planepb.Step{Sequence: s.sequence + 1, SendTime: s.step.SendTime}, &s.step}
		s.sequence++
	case sim.Garble, sim.Oversize:
		b, err := proto.Marshal(&s.step)
		if err != nil {
			return true, err
		}
		if broken == sim.Garble {
			b = b[:len(b)-1]
		} else {
			b = append(b, padding(overLimit)...)
		}
		messages = []any{rawStep(b)}
	}
	if s.cut != nil {
		s.conn.Mold(s.cut)
		s.cut = nil
	}
	for _, m := range messages {
		// SendMsg has marshalled the message when it returns, so that the next
		// round may reuse it: no stats handler is installed that would keep it.
		if err := stream.SendMsg(m); err != nil {
			return true, err
		}
	}
	switch broken {
	case sim.Truncate:
		return true, nil
	case sim.Cut:
		if s.conn != nil {
			s.conn.Close()
		}
		return true, status.Error(codes.Unavailable, "cut by fault")
	case sim.Reset:
		s.breakConn()
		return true, status.Error(codes.Unavailable, "reset by fault")
	}
	return false, nil
}

// noFault is encode's answer when nothing strikes.
const noFault = sim.Refuse // which never reaches a session

// encode turns the taken results into the step message, frees the slots that finished, and
// returns the fault that hits the session with this message.
func (s *session) encode() (broken sim.FaultKind) {
	t, m := &s.taken, &s.step
	broken = noFault
	if s.faulty > 0 {
		broken = s.strike(t)
	}
	if s.dead > 0 {
		s.bury(t)
	}
	m.Slot, m.Count, m.Notice = m.Slot[:0], m.Count[:0], append(m.Notice[:0], s.answers...)
	s.answers = nil
	if s.owed > 0 {
		s.answerWith(t, m)
	}
	index := t.Slot // the box's slots, in the order of the columns
	if t.Steps == 1 {
		// One id per slot: the columns go out as they are.
		for _, i := range t.Slot {
			m.Slot = append(m.Slot, s.byIndex[i].wire)
		}
		m.Id = append(m.Id[:0], t.ID...)
		m.Total = append(m.Total[:0], t.Total...)
	} else {
		s.group.merge(t, len(s.byIndex), m)
		index = s.group.order
		for i, index := range m.Slot {
			m.Slot[i] = s.byIndex[index].wire
		}
	}
	m.Logprob, m.TopId, m.TopLogprob = m.Logprob[:0], m.TopId[:0], m.TopLogprob[:0]
	if s.scored > 0 {
		s.score(m, index)
	}
	for _, f := range t.First {
		cached := uint32(f.Cached)
		m.Notice = append(m.Notice, &planepb.Notice{Slot: s.byIndex[f.Slot].wire, PromptTokens: s.byIndex[f.Slot].prompted, CachedTokens: &cached, Stamps: &planepb.Stamps{
			ServerCreated: uint64(f.Stamps.ServerCreated),
			QueueStart:    uint64(f.Stamps.QueueStart),
			QueueEnd:      uint64(f.Stamps.QueueEnd),
			PrefillStart:  uint64(f.Stamps.PrefillStart),
			PrefillEnd:    uint64(f.Stamps.PrefillEnd),
			FirstToken:    uint64(f.Stamps.FirstToken),
		}})
	}
	for _, d := range t.Done {
		j := s.byIndex[d.Slot]
		count := d.Completion
		if j.faulty && j.fault.Kind == sim.Miscount {
			count++
		}
		finish := &planepb.Finish{
			Reason:           finishReason(d.Reason),
			PromptTokens:     uint32(d.PromptTokens),
			CachedTokens:     uint32(d.Cached),
			CompletionTokens: uint32(count),
			Retracted:        uint32(d.Retractions),
		}
		if d.Err != nil {
			finish.Reason, finish.Message = planepb.Finish_REASON_ERROR, d.Err.Message
		}
		m.Notice = append(m.Notice, &planepb.Notice{Slot: j.wire, Finish: finish})
		s.releaseLocked(j)
	}
	for _, j := range s.failed {
		m.Notice = append(m.Notice, &planepb.Notice{Slot: j.wire, Finish: &planepb.Finish{
			Reason: planepb.Finish_REASON_ERROR, Message: engine.ErrAborted().Error(), CompletionTokens: uint32(j.fault.After),
		}})
	}
	clear(s.failed)
	s.failed = s.failed[:0]
	m.Running, m.Waiting = s.plane.run.Told(t.Running), s.plane.run.Told(t.Waiting)
	if s.stray {
		s.stray = false
		m.Slot, m.Total, m.Id = append(m.Slot, straySlot), append(m.Total, 1), append(m.Id, 1)
		if len(m.Count) > 0 {
			m.Count = append(m.Count, 1)
		}
	}
	return broken
}

// answerWith answers the requests that have output in a batch and no answer yet.
func (s *session) answerWith(t *engine.Batch, m *planepb.Step) {
	with := func(j *slotJob) {
		if j.owed {
			m.Notice = append(m.Notice, s.accepted(j))
		}
	}
	for _, index := range t.Slot {
		with(s.byIndex[index])
	}
	for _, d := range t.Done {
		with(s.byIndex[d.Slot])
	}
	for _, j := range s.failed {
		with(j)
	}
}

// score fills in the log probabilities of the requests that asked for them; index holds the
// request of each row of the step.
func (s *session) score(m *planepb.Step, index []uint32) {
	at := 0
	for i, box := range index {
		n := 1
		if len(m.Count) > 0 {
			n = int(m.Count[i])
		}
		ids := m.Id[at : at+n]
		at += n
		j := s.byIndex[box]
		if j.top < 0 {
			continue
		}
		for k, id := range ids {
			position := int(m.Total[i]) - n + k
			m.Logprob = append(m.Logprob, float32(vocab.Logprob(id, position)))
			for a := range j.top {
				other, lp := s.plane.vocab.Alternative(id, position, a)
				m.TopId, m.TopLogprob = append(m.TopId, other), append(m.TopLogprob, float32(lp))
			}
		}
	}
}

// strike returns the fault that hits a batch: that of the first slot which gets an id
// beyond the fault's count. A fault takes effect once. If it ends the session, the batch
// keeps what comes before that id; with a broken connection some of that may still be lost
// on the way.
func (s *session) strike(t *engine.Batch) sim.FaultKind {
	for i, index := range t.Slot {
		j := s.byIndex[index]
		if !j.faulty || int(t.Total[i]) <= j.fault.After {
			continue
		}
		switch j.fault.Kind {
		case sim.Skip, sim.Repeat, sim.Garble, sim.Swap, sim.Oversize:
		case sim.Backward:
			// If one message holds several steps, the last total is sent.
			first, last := slices.Index(t.Slot, index), len(t.Slot)-1
			for t.Slot[last] != index {
				last--
			}
			t.Total[last] = uint32(max(0, int(t.Total[first])-2))
		case sim.Stray:
			s.stray = true
		case sim.Pause, sim.Drip, sim.Abort:
			// They leave the message as it is, and others may strike with it.
			s.strikeOne(j)
			continue
		case sim.Split:
			if s.cut = (&conns.Shape{First: j.fault.At, Delay: j.fault.Delay, Once: true}); j.fault.At == 0 {
				s.cut.Bytes = 1
			}
		case sim.Cut, sim.Truncate, sim.Reset:
			t.Keep(i)
		default:
			continue
		}
		j.faulty = false
		s.faulty--
		return j.fault.Kind
	}
	return noFault
}

// strikeOne strikes one request, or all of the engine, and not the message.
func (s *session) strikeOne(j *slotJob) {
	j.faulty = false
	s.faulty--
	switch j.fault.Kind {
	case sim.Pause:
		s.plane.run.Pause(j.fault.Delay)
	case sim.Drip:
		j.drips = true
		s.conn.Mold(&conns.Shape{Bytes: j.fault.Bytes, Delay: j.fault.Delay})
	case sim.Abort:
		s.giveUp(j)
	}
}

// giveUp ends a request as the engine's own failure. Its slot is free for the
// gateway after this step; the core has yet to end it.
func (s *session) giveUp(j *slotJob) {
	j.dead = true
	s.dead++
	delete(s.slots, j.wire)
	s.failed = append(s.failed, j)
	s.plane.run.End(&j.Job, infer.ReasonAbort)
}

// bury removes from a batch the results of requests that were given up, beyond the fault's
// count, and frees the slots of those that the core has finished.
func (s *session) bury(t *engine.Batch) {
	keep := 0
	for i, index := range t.Slot {
		if j := s.byIndex[index]; j.dead && int(t.Total[i]) > j.fault.After {
			continue
		}
		t.Slot[keep], t.ID[keep], t.Total[keep] = index, t.ID[i], t.Total[i]
		keep++
	}
	t.Slot, t.ID, t.Total = t.Slot[:keep], t.ID[:keep], t.Total[:keep]
	t.First = slices.DeleteFunc(t.First, func(f engine.First) bool { return s.byIndex[f.Slot].dead && !slices.Contains(t.Slot, f.Slot) })
	t.Done = slices.DeleteFunc(t.Done, func(d engine.Done) bool {
		j := s.byIndex[d.Slot]
		if j.dead {
			s.releaseLocked(j)
		}
		return j.dead
	})
}

func finishReason(r infer.Reason) planepb.Finish_Reason {
	switch r {
	case infer.ReasonStop:
		return planepb.Finish_REASON_STOP
	case infer.ReasonLength:
		return planepb.Finish_REASON_LENGTH
	case infer.ReasonAbort:
		return planepb.Finish_REASON_ABORT
	}
	return planepb.Finish_REASON_ERROR
}

// grouping merges several steps into one message, each slot once with its ids
// in their order. Its buffers are reused.
type grouping struct {
	count []uint32 // by the box's slot; zero between merges
	next  []uint32 // by the box's slot: where its next id goes
	order []uint32 // the box's slots in the order of their first id
}

// merge fills the columns of m; its slots are still the box's.
func (g *grouping) merge(t *engine.Batch, slots int, m *planepb.Step) {
	for len(g.count) < slots {
		g.count = append(g.count, 0)
		g.next = append(g.next, 0)
	}
	g.order = g.order[:0]
	for _, i := range t.Slot {
		if g.count[i] == 0 {
			g.order = append(g.order, i)
		}
		g.count[i]++
	}
	at := uint32(0)
	for _, i := range g.order {
		g.next[i] = at
		at += g.count[i]
	}
	m.Id = grow(m.Id, len(t.ID))
	m.Total = m.Total[:0]
	for k, i := range t.Slot {
		m.Id[g.next[i]] = t.ID[k]
		g.next[i]++
	}
	for _, i := range g.order {
		m.Slot = append(m.Slot, i)
		m.Count = append(m.Count, g.count[i])
	}
	m.Total = grow(m.Total, len(g.order))
	for k, i := range t.Slot {
		g.count[i] = t.Total[k] // the last one stays
	}
	for k, i := range g.order {
		m.Total[k] = g.count[i]
		g.count[i] = 0
	}
}

// grow returns s the length n.
func grow(s []uint32, n int) []uint32 {
	if cap(s) < n {
		return make([]uint32, n, n+n/4)
	}
	return s[:n]
}
