package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/test/testkit"
)

func caller(t *testing.T, socket string) controlv1.ControlServiceClient {
	t.Helper()
	return controlv1.NewControlServiceClient(testkit.Open(rpcdial.Unix(socket))(t))
}

type statuses = grpc.ServerStreamingClient[controlv1.DevicePluginStatus]

func enable(t *testing.T, c controlv1.ControlServiceClient, r *controlv1.EnableDevicesRequest) (statuses, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(testkit.Context(t))
	stream := testkit.Value(c.EnableDevices(ctx, r))(t)
	return stream, cancel
}

func reads(t *testing.T, s statuses, state controlv1.DevicePluginStatus_State) *controlv1.DevicePluginStatus {
	t.Helper()
	for {
		m, err := s.Recv()
		if err != nil {
			t.Fatalf("no %s: %v", state, err)
		}
		if m.State == state {
			return m
		}
	}
}

func last(s statuses) error {
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
}

func TestEnableThenDisable(t *testing.T) {
	d, s := start(t, socketOf(t))
	c := caller(t, s.socket)
	stream, _ := enable(t, c, &controlv1.EnableDevicesRequest{NodeStateGeneration: 7, NodeStateUid: "u", ConfigHash: "h1", NodeName: "n"})
	got := reads(t, stream, controlv1.DevicePluginStatus_SERVING)
	if len(got.Session) < 20 {
		t.Errorf("session %q", got.Session)
	}
	want := &controlv1.DevicePluginStatus{
		State: controlv1.DevicePluginStatus_SERVING, ResourcePoolCount: 1, DeviceCount: 2, ServingGeneration: 7, Session: got.Session,
		NodeStateUid: "u", ConfigHash: "h1", Control: controlv1.Control_CONTROL_HELD,
		Resources: []*controlv1.ResourceStatus{{Name: "example.com/a", State: controlv1.ResourceState_RESOURCE_STATE_OFFERED, DeviceCount: 3, OfferedCount: 2, KubeletConnected: true}},
	}
	testkit.Diff(t, "result", want, got, protocmp.Transform())
	asked, err := c.GetStatus(testkit.Context(t), &controlv1.GetStatusRequest{})
	want.Session = ""
	if diff := cmp.Diff(want, asked, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("GetStatus: %v, want -, got +:\n%s", err, diff)
	}
	answer := testkit.Value(c.DisableDevices(testkit.Context(t), &controlv1.DisableDevicesRequest{Session: got.Session}))(t)
	done := &controlv1.DisableDevicesResponse{KubeletConfirmed: true, InUse: []*controlv1.DeviceInUse{
		{ResourceName: "example.com/a", Id: "0000:01:00.1"},
		{ResourceName: "example.com/a", Id: "0000:01:00.2", PodNamespace: "ns", PodName: "p", ContainerName: "c"},
	}}
	testkit.Diff(t, "result", done, answer, protocmp.Transform())
	testkit.WantError(t, "the stream", last(stream), io.EOF)
	testkit.Eventually(t, "the stream is closed", func() bool { return d.ended.Load() == 1 })
	v, err := c.GetVersion(testkit.Context(t), &controlv1.GetVersionRequest{})
	if diff := cmp.Diff(&controlv1.GetVersionResponse{Name: "cleat", Version: "1.2", Extensions: Extensions}, v, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("GetVersion: %v\n%s", err, diff)
	}
}

func TestStreamThatEndsIsALoss(t *testing.T) {
	d, s := start(t, socketOf(t))
	stream, cancel := enable(t, caller(t, s.socket), &controlv1.EnableDevicesRequest{})
	reads(t, stream, controlv1.DevicePluginStatus_SERVING)
	cancel()
	testkit.Eventually(t, "nothing is offered", func() bool { st := d.Status(); return st.Holding == gate.Waiting && st.Devices == 0 })
}

func TestServerStops(t *testing.T) {
	_, s := start(t, socketOf(t))
	stream, _ := enable(t, caller(t, s.socket), &controlv1.EnableDevicesRequest{})
	reads(t, stream, controlv1.DevicePluginStatus_SERVING)
	s.stop()
	if err := last(stream); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("ended with %v", err)
	}
}

func TestRefusals(t *testing.T) {
	d, s := start(t, socketOf(t))
	c := caller(t, s.socket)
	holder, _ := enable(t, c, &controlv1.EnableDevicesRequest{NodeStateGeneration: 5, NodeStateUid: "u"})
	reads(t, holder, controlv1.DevicePluginStatus_SERVING)
	enables := func(r *controlv1.EnableDevicesRequest) func() error {
		return func() error {
			stream, _ := enable(t, c, r)
			return last(stream)
		}
	}
	beats := func(session string) func() error {
		return func() error {
			_, err := c.Heartbeat(testkit.Context(t), &controlv1.HeartbeatRequest{Session: session})
			return err
		}
	}
	disables := func(session string) func() error {
		return func() error {
			_, err := c.DisableDevices(testkit.Context(t), &controlv1.DisableDevicesRequest{Session: session})
			return err
		}
	}
	for name, of := range map[string]struct {
		ask  func() error
		code codes.Code
		says string
	}{
		"bad request":                 {enables(&controlv1.EnableDevicesRequest{NodeStateGeneration: -1}), codes.InvalidArgument, "is negative"},
		"older":                       {enables(&controlv1.EnableDevicesRequest{NodeStateGeneration: 4, NodeStateUid: "u"}), codes.FailedPrecondition, "older than generation 5"},
		"other configuration":         {enables(&controlv1.EnableDevicesRequest{NodeStateGeneration: 6, NodeStateUid: "u", ConfigHash: "h2"}), codes.FailedPrecondition, `the hash "h1"`},
		"heartbeat without a session": {beats(""), codes.InvalidArgument, "session is empty"},
		"heartbeat of another":        {beats("x"), codes.FailedPrecondition, "does not hold"},
		"disable of another":          {disables("x"), codes.FailedPrecondition, "generation 5"},
		"disable with a bad session":  {disables("a\nb"), codes.InvalidArgument, "session "},
	} {
		t.Run(name, func(t *testing.T) {
			err := of.ask()
			if st := status.Convert(err); st.Code() != of.code || !strings.Contains(st.Message(), of.says) || strings.Contains(st.Message(), "(") && strings.HasSuffix(st.Message(), st.Code().String()+")") {
				t.Errorf("got %v", err)
			}
		})
	}
	if st := d.Status(); st.Generation != 5 || st.Devices != 2 {
		t.Errorf("the holder suffered: %+v", st)
	}
}

func TestNotControlled(t *testing.T) {
	d := newDouble(t, gate.Config{})
	s := serve(t, d, socketOf(t))
	c := caller(t, s.socket)
	stream, _ := enable(t, c, &controlv1.EnableDevicesRequest{})
	if err := last(stream); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "--controlled-mode") {
		t.Errorf("got %v", err)
	}
	got, err := c.GetStatus(testkit.Context(t), &controlv1.GetStatusRequest{})
	if err != nil || got.Control != controlv1.Control_CONTROL_NONE || got.DeviceCount != 2 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestManySupersedeEachOther(t *testing.T) {
	d, s := start(t, socketOf(t))
	const many = 50
	var all sync.WaitGroup
	ended := make(chan error, many)
	ctx, cancel := context.WithCancel(testkit.Context(t))
	for i := range many {
		c := caller(t, s.socket)
		all.Go(func() {
			stream, err := c.EnableDevices(ctx, &controlv1.EnableDevicesRequest{NodeStateGeneration: int64(i)})
			if err == nil {
				err = last(stream)
			}
			ended <- err
		})
	}
	for range many - 1 {
		if err := <-ended; status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), "superseded") {
			t.Errorf("ended with %v", err)
		}
	}
	if st := d.Status(); st.Holding != gate.Live {
		t.Errorf("no holder: %+v", st)
	}
	cancel()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("ended with %v", err)
	}
	all.Wait()
	testkit.Eventually(t, "no holder", func() bool { return d.Status().Holding == gate.Waiting })
	testkit.Eventually(t, "all streams are closed", func() bool { return d.streams.Load() == 0 && d.ended.Load() == many })
}

func TestSlowReader(t *testing.T) {
	d, s := start(t, socketOf(t))
	c := caller(t, s.socket)
	stream, cancel := enable(t, c, &controlv1.EnableDevicesRequest{})
	defer cancel()
	reads(t, stream, controlv1.DevicePluginStatus_SERVING)
	const many = 2000
	big := strings.Repeat("x", 2000)
	for i := range many {
		d.configure(fmt.Sprintf("%05d", i) + big)
	}
	other, err := c.GetStatus(testkit.Context(t), &controlv1.GetStatusRequest{})
	number := func(m *controlv1.DevicePluginStatus) (n int) {
		n, _ = strconv.Atoi(strings.TrimSuffix(m.ConfigHash, big))
		return n
	}
	if err != nil || number(other) != many-1 {
		t.Fatalf("got %v, %v", other, err)
	}
	read := 0
	for newest := -1; newest != many-1; read++ {
		m := testkit.Value(stream.Recv())(t)
		if n := number(m); n < newest {
			t.Fatalf("%d came after %d", n, newest)
		} else {
			newest = n
		}
	}
	if read >= many/2 {
		t.Errorf("read %d statuses of %d", read, many)
	}
}

// beats renews a lease for longer than its duration; false if the test was
// suspended for that long.
func beats(t *testing.T, d *double, c controlv1.ControlServiceClient, session string, lease time.Duration, last time.Time) bool {
	t.Helper()
	for began := last; time.Since(began) < 5*lease/2; {
		now := time.Now()
		answer, err := c.Heartbeat(testkit.Context(t), &controlv1.HeartbeatRequest{Session: session})
		if err != nil && time.Since(last) >= lease && lease < testkit.Timeout {
			return false
		}
		if err != nil || answer.LeaseDuration.AsDuration() != lease {
			t.Fatalf("%v, %v", answer, err)
		}
		last = now
		<-time.After(100 * time.Millisecond)
	}
	st := d.Status()
	if st.Holding == gate.Live && !st.LeaseEnds.IsZero() {
		return true
	}
	if time.Since(last) < lease {
		t.Fatalf("the lease was not renewed: %+v", st)
	}
	return false
}

// A stream blocked in Send also ends.
func TestStoppedHolderLosesItsLease(t *testing.T) {
	t.Parallel()
	d, s := start(t, socketOf(t))
	c := caller(t, s.socket)
	var stream statuses
	for lease, kept := time.Second, false; !kept; lease *= 2 { // no pause of the test is longer
		began := time.Now()
		stream, _ = enable(t, c, &controlv1.EnableDevicesRequest{LeaseDuration: durationpb.New(lease)})
		session := reads(t, stream, controlv1.DevicePluginStatus_SERVING).Session
		kept = beats(t, d, c, session, lease, began)
	}
	if err := last(stream); status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "without a Heartbeat") {
		t.Errorf("ended with %v", err)
	}
}

func TestServerIgnoresNonGRPCClients(t *testing.T) {
	d, s := start(t, socketOf(t))
	for i, words := range []string{"", "GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", strings.Repeat("\xff", 4096)} {
		conn := testkit.Value(net.Dial("unix", s.socket))(t)
		if _, err := fmt.Fprint(conn, words); err != nil {
			t.Log(i, err)
		}
		_ = conn.Close()
	}
	stream, _ := enable(t, caller(t, s.socket), &controlv1.EnableDevicesRequest{})
	reads(t, stream, controlv1.DevicePluginStatus_SERVING)
	if d.Status().Holding != gate.Live {
		t.Error("no holder")
	}
}

type broken struct {
	Plugin
	err error
}

func (b broken) Enable(context.Context, string, gate.Claim, func(gate.Status) error) error {
	return b.err
}
func (b broken) Disable(context.Context, string) (gate.Withdrawal, error) {
	return gate.Withdrawal{}, b.err
}
func (b broken) Heartbeat(string) (time.Duration, error) { return 0, b.err }

func TestCodesOfErrors(t *testing.T) {
	for _, of := range []struct {
		err  error
		code codes.Code
		says string
	}{
		{fmt.Errorf("deep: %w", &gate.End{Code: codes.Unavailable, Reason: "the plugin stops"}), codes.Unavailable, "the plugin stops"},
		{errors.New("odd"), codes.Internal, "odd"},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "x: context deadline exceeded"},
		{context.Canceled, codes.Canceled, "context canceled"},
		{&gate.End{Code: codes.OK, Reason: "never an error"}, codes.Internal, "never an error (OK)"},
	} {
		s := serve(t, broken{err: of.err}, socketOf(t))
		c := caller(t, s.socket)
		stream, _ := enable(t, c, &controlv1.EnableDevicesRequest{})
		_, disable := c.DisableDevices(testkit.Context(t), &controlv1.DisableDevicesRequest{})
		_, heartbeat := c.Heartbeat(testkit.Context(t), &controlv1.HeartbeatRequest{Session: "s"})
		failures := []error{last(stream), disable, heartbeat}
		if end, isEnd := errors.AsType[*gate.End](of.err); isEnd && end.Code == codes.OK {
			testkit.WantError(t, "the stream", failures[0], io.EOF)
			failures = failures[1:]
		}
		for _, err := range failures {
			if st := status.Convert(err); st.Code() != of.code || st.Message() != of.says {
				t.Errorf("%v became %v", of.err, err)
			}
		}
		s.stop()
	}
	if Code(nil) != codes.OK {
		t.Error("no error is OK")
	}
	if !Quiet("/sriovdp.control.v1.ControlService/Heartbeat") || !Quiet("/sriovdp.control.v1.ControlService/GetStatus") || Quiet("/sriovdp.control.v1.ControlService/EnableDevices") {
		t.Error("the wrong methods are quiet")
	}
}
