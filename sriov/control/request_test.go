package control

import (
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestClaimOf(t *testing.T) {
	full := &controlv1.EnableDevicesRequest{
		NodeStateGeneration: 3, NodeName: "worker-1.example.com", NodeStateUid: "0b0c3b5e-6a4e-4a3e-9d63-2f61c0a34a1d",
		ConfigHash: "sha256:" + strings.Repeat("a", 64), LeaseDuration: durationpb.New(time.Second), HoldTime: durationpb.New(time.Hour),
		ClosedFunctions: []*controlv1.ClosedFunction{{Address: "0000:3b:00.0", Reason: "MTU 9000"}, {Address: "10000:e1:1f.7"}},
	}
	for name, of := range map[string]struct {
		change func(*controlv1.EnableDevicesRequest)
		says   string
	}{
		"full":                {func(*controlv1.EnableDevicesRequest) {}, ""},
		"proposal":            {func(r *controlv1.EnableDevicesRequest) { proto.Reset(r); r.NodeStateGeneration = 5 }, ""},
		"empty":               {func(r *controlv1.EnableDevicesRequest) { proto.Reset(r) }, ""},
		"highest generation":  {func(r *controlv1.EnableDevicesRequest) { r.NodeStateGeneration = math.MaxInt64 }, ""},
		"negative generation": {func(r *controlv1.EnableDevicesRequest) { r.NodeStateGeneration = -1 }, "node_state_generation -1 is negative; set it to metadata.generation of the node state, or to 0 if unknown"},
		"long node":           {func(r *controlv1.EnableDevicesRequest) { r.NodeName = strings.Repeat("n", 254) }, "node_name is 254 bytes long, the maximum is 253: \"" + strings.Repeat("n", 40) + "\"..."},
		"longest node":        {func(r *controlv1.EnableDevicesRequest) { r.NodeName = strings.Repeat("n", 253) }, ""},
		"line in node":        {func(r *controlv1.EnableDevicesRequest) { r.NodeName = "a\nb" }, `node_name "a\nb" has invalid characters; use printable ASCII without spaces`},
		"long uid":            {func(r *controlv1.EnableDevicesRequest) { r.NodeStateUid = strings.Repeat("n", 129) }, "node_state_uid is 129 bytes"},
		"space in uid":        {func(r *controlv1.EnableDevicesRequest) { r.NodeStateUid = "a b" }, "node_state_uid "},
		"long hash":           {func(r *controlv1.EnableDevicesRequest) { r.ConfigHash = strings.Repeat("n", 257) }, "config_hash is 257 bytes"},
		"umlaut in hash":      {func(r *controlv1.EnableDevicesRequest) { r.ConfigHash = "ü" }, "config_hash "},
		"no lease":            {func(r *controlv1.EnableDevicesRequest) { r.LeaseDuration = durationpb.New(0) }, ""},
		"longest lease":       {func(r *controlv1.EnableDevicesRequest) { r.LeaseDuration = durationpb.New(time.Hour) }, ""},
		"short lease":         {func(r *controlv1.EnableDevicesRequest) { r.LeaseDuration = durationpb.New(time.Second - 1) }, "lease_duration is 999.999999ms; it must be between 1s and 1h0m0s, or unset"},
		"long lease":          {func(r *controlv1.EnableDevicesRequest) { r.LeaseDuration = durationpb.New(time.Hour + 1) }, "lease_duration is"},
		"negative lease":      {func(r *controlv1.EnableDevicesRequest) { r.LeaseDuration = durationpb.New(-time.Second) }, "lease_duration is -1s"},
		"odd lease":           {func(r *controlv1.EnableDevicesRequest) { r.LeaseDuration = &durationpb.Duration{Seconds: 1, Nanos: -1} }, "lease_duration is not a valid duration"},
		"endless hold":        {func(r *controlv1.EnableDevicesRequest) { r.HoldTime = &durationpb.Duration{Seconds: math.MaxInt64} }, "hold_time is not a valid duration"},
		"short hold":          {func(r *controlv1.EnableDevicesRequest) { r.HoldTime = durationpb.New(1) }, ""},
		"long hold":           {func(r *controlv1.EnableDevicesRequest) { r.HoldTime = durationpb.New(time.Hour + 1) }, "hold_time is 1h0m0.000000001s; it must be between 0s and 1h0m0s"},
		"no address":          {func(r *controlv1.EnableDevicesRequest) { r.ClosedFunctions[0].Address = "" }, `closed_functions: "" is not a PCI address, want one such as "0000:3b:00.0"`},
		"a path":              {func(r *controlv1.EnableDevicesRequest) { r.ClosedFunctions[0].Address = "../0000:3b:00.0" }, "closed_functions: "},
		"long reason":         {func(r *controlv1.EnableDevicesRequest) { r.ClosedFunctions[0].Reason = strings.Repeat("n", 513) }, "closed_functions: the reason of 0000:3b:00.0 is 513 bytes long, the maximum is 512"},
		"line in reason":      {func(r *controlv1.EnableDevicesRequest) { r.ClosedFunctions[0].Reason = "a\nb" }, "closed_functions: the reason of 0000:3b:00.0 has control characters"},
		"too many":            {func(r *controlv1.EnableDevicesRequest) { r.ClosedFunctions = make([]*controlv1.ClosedFunction, 4097) }, "closed_functions has 4097 functions, the maximum is 4096; close their physical functions"},
		"negative hold":       {func(r *controlv1.EnableDevicesRequest) { r.HoldTime = durationpb.New(-1) }, "hold_time is -1ns"},
	} {
		t.Run(name, func(t *testing.T) {
			r := proto.CloneOf(full)
			of.change(r)
			c, err := claimOf(r)
			if of.says == "" {
				want := gate.Claim{UID: r.NodeStateUid, Generation: r.NodeStateGeneration, Hash: r.ConfigHash, Node: r.NodeName,
					Lease: r.LeaseDuration.AsDuration(), Hold: r.HoldTime.AsDuration(), Closed: closedOf(r.ClosedFunctions)}
				if diff := cmp.Diff(want, c); err != nil || diff != "" {
					t.Errorf("%v, want -, got +:\n%s", err, diff)
				}
				return
			}
			if end, ok := errors.AsType[*gate.End](err); !ok || end.Code != codes.InvalidArgument || !strings.HasPrefix(end.Reason, of.says) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func FuzzClaimOf(f *testing.F) {
	for _, r := range []*controlv1.EnableDevicesRequest{
		{}, {NodeStateGeneration: 5, NodeName: "n"}, {NodeStateUid: "u", ConfigHash: "h", LeaseDuration: durationpb.New(time.Second), HoldTime: durationpb.New(1)},
		{LeaseDuration: &durationpb.Duration{Seconds: -1, Nanos: 1}}, {ClosedFunctions: []*controlv1.ClosedFunction{{Address: "0000:3b:00.0", Reason: "r"}}},
	} {
		b := testkit.Value(proto.Marshal(r))(f)
		f.Add(b, "s")
	}
	f.Fuzz(func(t *testing.T, b []byte, session string) {
		if err := checkSession(session, true); err == nil && (session == "" || len(session) > maxSession || strings.ContainsAny(session, " \n\x00")) {
			t.Errorf("%q is taken for a session", session)
		}
		var r controlv1.EnableDevicesRequest
		if proto.Unmarshal(b, &r) != nil {
			return
		}
		c, err := claimOf(&r)
		if err != nil {
			if end, ok := errors.AsType[*gate.End](err); !ok || end.Code != codes.InvalidArgument || len(end.Reason) > 2000 {
				t.Errorf("got %v", err)
			}
			return
		}
		if c.Generation < 0 || c.Lease < 0 || c.Lease > MaxLease || c.Lease > 0 && c.Lease < MinLease || c.Hold < 0 || c.Hold > MaxHold {
			t.Errorf("taken: %+v", c)
		}
		for _, w := range []string{c.Node, c.UID, c.Hash} {
			if len(w) > maxHash || strings.ContainsFunc(w, func(r rune) bool { return r <= ' ' || r > '~' }) {
				t.Errorf("taken: %q", w)
			}
		}
		again, err := claimOf(requestOf(c))
		if diff := cmp.Diff(c, again); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	})
}

// Except fields that the message lacks.
func TestStatusRoundTrip(t *testing.T) {
	keys := func(m map[gate.Phase]controlv1.ResourceState) (all []gate.Phase) {
		for k := range m {
			all = append(all, k)
		}
		return all
	}
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(0, math.MaxInt32)
		timestamps := rapid.Custom(func(t *rapid.T) time.Time {
			if rapid.Bool().Draw(t, "none") {
				return time.Time{}
			}
			return time.Unix(rapid.Int64Range(1, 4e9).Draw(t, "s"), rapid.Int64Range(0, 999999999).Draw(t, "ns")).UTC()
		})
		words := rapid.StringN(0, 50, -1)
		s := gate.Status{
			State:   rapid.SampledFrom([]gate.State{gate.Initializing, gate.Serving, gate.Failed, gate.Stopping}).Draw(t, "state"),
			Holding: rapid.SampledFrom([]gate.HolderState{gate.NotControlled, gate.Waiting, gate.Live, gate.Lost}).Draw(t, "holding"),
			Pools:   count.Draw(t, "pools"), Devices: count.Draw(t, "devices"), Generation: rapid.Int64().Draw(t, "generation"),
			UID: words.Draw(t, "uid"), Hash: words.Draw(t, "hash"), Error: words.Draw(t, "error"),
			LeaseEnds: timestamps.Draw(t, "lease"), HoldEnds: timestamps.Draw(t, "hold"), Resources: map[string]gate.Report{},
		}
		if rapid.Bool().Draw(t, "restricted") {
			s.Closed, s.Withdrawn = gate.Closed{"0000:3b:00.0": "MTU"}, rapid.Bool().Draw(t, "withdrawn")
		}
		for _, name := range rapid.SliceOfN(words, 0, 5).Draw(t, "names") {
			s.Resources[name] = gate.Report{Phase: rapid.SampledFrom(keys(phases)).Draw(t, "phase"), Devices: count.Draw(t, "d"), Offered: count.Draw(t, "o"),
				Allocating: count.Draw(t, "a"), Streaming: rapid.Bool().Draw(t, "s"), Error: words.Draw(t, "e")}
		}
		b, err := proto.Marshal(messageOf(s, "x"))
		var m controlv1.DevicePluginStatus
		if err == nil {
			err = proto.Unmarshal(b, &m)
		}
		if err != nil || m.Session != "x" {
			t.Fatalf("%v, session %q", err, m.Session)
		}
		if diff := cmp.Diff(s, statusOf(&m)); diff != "" {
			t.Fatalf("want -, got +:\n%s", diff)
		}
	})
}

// Never as UNKNOWN.
func TestInvalidStatuses(t *testing.T) {
	long := strings.Repeat("ü", maxText)
	s := gate.Status{State: "dreaming", Holding: "odd", Pools: -1, Devices: math.MaxInt, Hash: "a\xffb", Error: long,
		Resources: map[string]gate.Report{"z\xff": {Phase: "odd", Error: "\xfe"}, "a": {}}}
	m := messageOf(s, "")
	if b, err := proto.Marshal(m); err != nil || len(b) > 3*maxText {
		t.Fatalf("%v, %d bytes", err, len(b))
	}
	if m.State != controlv1.DevicePluginStatus_ERROR || !strings.Contains(m.ErrorMessage, `unknown state "dreaming"`) || !utf8.ValidString(m.ErrorMessage) || len(m.ErrorMessage) > maxText {
		t.Errorf("state %s: %.80s", m.State, m.ErrorMessage)
	}
	if m.DeviceCount != math.MaxInt32 || m.ResourcePoolCount != 0 || m.ConfigHash != "a\uFFFDb" || m.Resources[0].Name != "a" || m.Resources[1].Name != "z\uFFFD" {
		t.Errorf("got %v", m)
	}
	if back := statusOf(&controlv1.DevicePluginStatus{State: 99, Control: 99}); back.State != "" || back.Holding != "" {
		t.Errorf("got %+v", back)
	}
}

// raw is the proposal's bytes, without the generated code.
type raw []byte

type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(raw))}, nil
}
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*raw) = data.Materialize()
	return nil
}

const (
	enableMethod  = "/sriovdp.control.v1.ControlService/EnableDevices"
	generation5   = "\x08\x05" + "\x12\x01n"
	serving5      = "\x08\x02" + "\x10\x01" + "\x18\x02" + "\x20\x05"
	initializing5 = "\x08\x01" + "\x20\x05"
)

// A daemon without the extensions releases the devices by closing the stream.
func TestDaemonOfTheProposal(t *testing.T) {
	d, s := start(t, socketOf(t))
	conn := testkit.Open(rpcdial.Unix(s.socket))(t)
	ctx, leave := context.WithCancel(testkit.Context(t))
	defer leave()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, enableMethod, grpc.ForceCodecV2(rawCodec{}))
	if err == nil {
		err = errors.Join(stream.SendMsg(raw(generation5)), stream.CloseSend())
	}
	testkit.Must(t, err)
	for got := ""; !strings.HasPrefix(got, serving5+"\xa2\x06"); { // and unknown fields
		var m raw
		if err := stream.RecvMsg(&m); err != nil {
			t.Fatalf("%v after %q", err, got)
		}
		got = string(m)
	}
	leave()
	testkit.Eventually(t, "nothing is offered", func() bool { s := d.Status(); return s.Holding == gate.Waiting && s.Devices == 0 })
}

type oldPlugin struct {
	quiet bool
	asked chan string
	ended chan struct{}
}

func (o *oldPlugin) enable(_ any, stream grpc.ServerStream) error {
	var request raw
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	o.asked <- string(request)
	if !o.quiet {
		for _, m := range []raw{raw(initializing5), raw(serving5)} {
			if err := stream.SendMsg(m); err != nil {
				return err
			}
		}
	}
	<-stream.Context().Done()
	o.ended <- struct{}{}
	return nil
}

func startOld(t *testing.T, quiet bool) (*oldPlugin, string) {
	t.Helper()
	o, socket := &oldPlugin{quiet: quiet, asked: make(chan string, 100), ended: make(chan struct{}, 100)}, socketOf(t)
	testkit.Serve(t, socket, func(r grpc.ServiceRegistrar) {
		r.RegisterService(&grpc.ServiceDesc{
			ServiceName: "sriovdp.control.v1.ControlService", HandlerType: (*any)(nil),
			Streams: []grpc.StreamDesc{{StreamName: "EnableDevices", Handler: o.enable, ServerStreams: true}},
		}, o)
	}, grpc.ForceServerCodecV2(rawCodec{}))
	return o, socket
}

func TestPluginOfTheProposal(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		o, socket := startOld(t, quiet)
		k, _ := renewing(t, socket)
		k.Enable(gate.Claim{Generation: 5, Node: "n", Lease: time.Second})
		if got := <-o.asked; !strings.HasPrefix(got, generation5) {
			t.Errorf("asked with %q", got)
		}
		if !quiet {
			testkit.Eventually(t, "the renewer has received all statuses", func() bool { return k.Status().Plugin.State == gate.Serving })
			if st := k.Status(); st.State != StateHeld || st.Plugin.Devices != 2 || st.Plugin.Generation != 5 {
				t.Errorf("status %+v", st)
			}
		}
		got, err := k.Disable(testkit.Context(t))
		if err != nil || got.Acknowledged || !strings.Contains(got.Reason, "does not implement DisableDevices") {
			t.Errorf("%+v, %v", got, err)
		}
		<-o.ended
		k.Enable(gate.Claim{Generation: 6, Node: "n"})
		if got := <-o.asked; !strings.HasPrefix(got, "\x08\x06") {
			t.Errorf("asked with %q", got)
		}
	}
}

func TestClientOfTheProposal(t *testing.T) {
	_, socket := startOld(t, false)
	c := testkit.Open(Dial(testkit.Context(t), socket))(t)
	_, err := c.Status(testkit.Context(t))
	if end, said := errors.AsType[*gate.End](err); !said || end.Code != codes.Unimplemented {
		t.Error(err)
	}
	if errors.Is(err, io.EOF) || status.Code(err) == codes.OK {
		t.Error(err)
	}
}
