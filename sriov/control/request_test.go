package control

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
	"github.com/cleatproject/cleat/sriov/gate"
)

func TestClaimOf(t *testing.T) {
	full := &controlv1.EnableDevicesRequest{
		NodeStateGeneration: 3, NodeName: "worker-1.example.com", NodeStateUid: "0b0c3b5e-6a4e-4a3e-9d63-2f61c0a34a1d",
		ConfigHash: "sha256:" + strings.Repeat("a", 64), LeaseDuration: durationpb.New(time.Second), HoldTime: durationpb.New(time.Hour),
	}
	for name, of := range map[string]struct {
		change func(*controlv1.EnableDevicesRequest)
		says   string // of the error; empty: it is good
	}{
		"full":                {func(*controlv1.EnableDevicesRequest) {}, ""},
		"proposal":            {func(r *controlv1.EnableDevicesRequest) { proto.Reset(r); r.NodeStateGeneration = 5 }, ""},
		"empty":               {func(r *controlv1.EnableDevicesRequest) { proto.Reset(r) }, ""},
		"highest generation":  {func(r *controlv1.EnableDevicesRequest) { r.NodeStateGeneration = math.MaxInt64 }, ""},
		"negative generation": {func(r *controlv1.EnableDevicesRequest) { r.NodeStateGeneration = -1 }, "node_state_generation -1 is negative; it is metadata.generation of the node state, 0 where that is not known"},
		"long node":           {func(r *controlv1.EnableDevicesRequest) { r.NodeName = strings.Repeat("n", 254) }, "node_name has 254 bytes, 253 are possible: \"" + strings.Repeat("n", 40) + "\"..."},
		"longest node":        {func(r *controlv1.EnableDevicesRequest) { r.NodeName = strings.Repeat("n", 253) }, ""},
		"line in node":        {func(r *controlv1.EnableDevicesRequest) { r.NodeName = "a\nb" }, `node_name is "a\nb"; only letters, digits and punctuation of ASCII are possible`},
		"long uid":            {func(r *controlv1.EnableDevicesRequest) { r.NodeStateUid = strings.Repeat("n", 129) }, "node_state_uid has 129 bytes"},
		"space in uid":        {func(r *controlv1.EnableDevicesRequest) { r.NodeStateUid = "a b" }, "node_state_uid is"},
		"long hash":           {func(r *controlv1.EnableDevicesRequest) { r.ConfigHash = strings.Repeat("n", 257) }, "config_hash has 257 bytes"},
		"umlaut in hash":      {func(r *controlv1.EnableDevicesRequest) { r.ConfigHash = "ü" }, "config_hash is"},
		"no lease":            {func(r *controlv1.EnableDevicesRequest) { r.LeaseDuration = durationpb.New(0) }, ""},
		"longest lease":       {func(r *controlv1.EnableDevicesRequest) { r.LeaseDuration = durationpb.New(time.Hour) }, ""},
		"short lease":         {func(r *controlv1.EnableDevicesRequest) { r.LeaseDuration = durationpb.New(time.Second - 1) }, "lease_duration is 999.999999ms; it can be from 1s to 1h0m0s, or left out"},
		"long lease":          {func(r *controlv1.EnableDevicesRequest) { r.LeaseDuration = durationpb.New(time.Hour + 1) }, "lease_duration is"},
		"negative lease":      {func(r *controlv1.EnableDevicesRequest) { r.LeaseDuration = durationpb.New(-time.Second) }, "lease_duration is -1s"},
		"odd lease":           {func(r *controlv1.EnableDevicesRequest) { r.LeaseDuration = &durationpb.Duration{Seconds: 1, Nanos: -1} }, "lease_duration is no duration"},
		"endless hold":        {func(r *controlv1.EnableDevicesRequest) { r.HoldTime = &durationpb.Duration{Seconds: math.MaxInt64} }, "hold_time is no duration"},
		"short hold":          {func(r *controlv1.EnableDevicesRequest) { r.HoldTime = durationpb.New(1) }, ""},
		"long hold":           {func(r *controlv1.EnableDevicesRequest) { r.HoldTime = durationpb.New(time.Hour + 1) }, "hold_time is 1h0m0.000000001s; it can be from 0s to 1h0m0s"},
		"negative hold":       {func(r *controlv1.EnableDevicesRequest) { r.HoldTime = durationpb.New(-1) }, "hold_time is -1ns"},
	} {
		t.Run(name, func(t *testing.T) {
			r := proto.CloneOf(full)
			of.change(r)
			c, err := claimOf(r)
			if of.says == "" {
				want := gate.Claim{UID: r.NodeStateUid, Generation: r.NodeStateGeneration, Hash: r.ConfigHash, Node: r.NodeName,
					Lease: r.LeaseDuration.AsDuration(), Hold: r.HoldTime.AsDuration()}
				if diff := cmp.Diff(want, c); err != nil || diff != "" {
					t.Errorf("%v, want -, got +:\n%s", err, diff)
				}
				return
			}
			if end, ok := errors.AsType[*End](err); !ok || end.Code != codes.InvalidArgument || !strings.HasPrefix(end.Reason, of.says) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func FuzzClaimOf(f *testing.F) {
	for _, r := range []*controlv1.EnableDevicesRequest{
		{}, {NodeStateGeneration: 5, NodeName: "n"}, {NodeStateUid: "u", ConfigHash: "h", LeaseDuration: durationpb.New(time.Second), HoldTime: durationpb.New(1)},
		{LeaseDuration: &durationpb.Duration{Seconds: -1, Nanos: 1}},
	} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
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
			if end, ok := errors.AsType[*End](err); !ok || end.Code != codes.InvalidArgument || len(end.Reason) > 2000 {
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
		// What a keeper sends says the same.
		again, err := claimOf(requestOf(Claim{UID: c.UID, Generation: c.Generation, Hash: c.Hash, Node: c.Node, Lease: c.Lease, Hold: c.Hold}))
		if diff := cmp.Diff(c, again); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	})
}

// A status says the same on both ends; what the wire has no place for excepted.
func TestStatusThereAndBack(t *testing.T) {
	keys := func(m map[gate.Phase]controlv1.ResourceState) (all []gate.Phase) {
		for k := range m {
			all = append(all, k)
		}
		return all
	}
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(0, math.MaxInt32)
		moment := rapid.Custom(func(t *rapid.T) time.Time {
			if rapid.Bool().Draw(t, "none") {
				return time.Time{}
			}
			return time.Unix(rapid.Int64Range(1, 4e9).Draw(t, "s"), rapid.Int64Range(0, 999999999).Draw(t, "ns")).UTC()
		})
		words := rapid.StringN(0, 50, -1)
		s := gate.Status{
			State:   rapid.SampledFrom([]gate.State{gate.Initializing, gate.Serving, gate.Failed, gate.Stopping}).Draw(t, "state"),
			Holding: rapid.SampledFrom([]gate.Holding{gate.NotControlled, gate.Waiting, gate.Live, gate.Lost}).Draw(t, "holding"),
			Pools:   count.Draw(t, "pools"), Devices: count.Draw(t, "devices"), Generation: rapid.Int64().Draw(t, "generation"),
			UID: words.Draw(t, "uid"), Hash: words.Draw(t, "hash"), Error: words.Draw(t, "error"),
			LeaseEnds: moment.Draw(t, "lease"), HoldEnds: moment.Draw(t, "hold"), Resources: map[string]gate.Report{},
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

// Whatever the plugin has, the wire takes it, and never as UNKNOWN.
func TestOddStatuses(t *testing.T) {
	long := strings.Repeat("ü", maxText)
	s := gate.Status{State: "dreaming", Holding: "odd", Pools: -1, Devices: math.MaxInt, Hash: "a\xffb", Error: long,
		Resources: map[string]gate.Report{"z\xff": {Phase: "odd", Error: "\xfe"}, "a": {}}}
	m := messageOf(s, "")
	b, err := proto.Marshal(m)
	if err != nil || len(b) > 3*maxText {
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
