package control

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/sriov/gate"
)

// What the proposal says, in bytes: nothing of ours is between.
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
	generation5   = "\x08\x05" + "\x12\x01n" // node_name n
	serving5      = "\x08\x02" + "\x10\x01" + "\x18\x02" + "\x20\x05"
	initializing5 = "\x08\x01" + "\x20\x05"
)

// A daemon of the proposal's gets its devices, and gives them back by leaving.
func TestDaemonOfTheProposal(t *testing.T) {
	d, s := start(t, socketOf(t))
	conn, err := rpcdial.Unix(s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, leave := context.WithCancel(bounded(t))
	defer leave()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, enableMethod, grpc.ForceCodecV2(rawCodec{}))
	if err == nil {
		err = errors.Join(stream.SendMsg(raw(generation5)), stream.CloseSend())
	}
	if err != nil {
		t.Fatal(err)
	}
	for got := ""; !strings.HasPrefix(got, serving5+"\xa2\x06"); { // then come fields that it does not know
		var m raw
		if err := stream.RecvMsg(&m); err != nil {
			t.Fatalf("%v after %q", err, got)
		}
		got = string(m)
	}
	leave()
	until(t, "nothing is offered", func() bool { s := d.Status(); return s.Holding == gate.Waiting && s.Devices == 0 })
}

// oldPlugin is a plugin that has only what the proposal has.
type oldPlugin struct {
	quiet bool // it sends nothing before something changes
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
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}))
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: "sriovdp.control.v1.ControlService", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "EnableDevices", Handler: o.enable, ServerStreams: true}},
	}, o)
	serving(t, socket, l, func(ctx context.Context, l net.Listener) error {
		defer context.AfterFunc(ctx, g.Stop)()
		return g.Serve(l)
	})
	return o, socket
}

func TestPluginOfTheProposal(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		o, socket := startOld(t, quiet)
		k, _ := keeps(t, socket)
		k.Enable(Claim{Generation: 5, Node: "n", Lease: time.Second})
		if got := <-o.asked; !strings.HasPrefix(got, generation5) {
			t.Errorf("asked with %q", got)
		}
		if !quiet {
			until(t, "the keeper has heard all", func() bool { return k.Status().Plugin.State == gate.Serving })
			if st := k.Status(); st.State != StateHeld || st.Extended || st.Plugin.Devices != 2 || st.Plugin.Generation != 5 {
				t.Errorf("status %+v", st)
			}
		}
		got, err := k.Disable(bounded(t))
		if err != nil || got.Acknowledged || !strings.Contains(got.Reason, "no DisableDevices") {
			t.Errorf("%+v, %v", got, err)
		}
		<-o.ended // its stream
		k.Enable(Claim{Generation: 6, Node: "n"})
		if got := <-o.asked; !strings.HasPrefix(got, "\x08\x06") {
			t.Errorf("asked with %q", got)
		}
	}
}

func TestClientOfTheProposal(t *testing.T) {
	_, socket := startOld(t, false)
	c, err := Dial(bounded(t), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, err = c.Status(bounded(t))
	if end, said := errors.AsType[*End](err); !said || end.Code != codes.Unimplemented {
		t.Error(err)
	}
	if errors.Is(err, io.EOF) || status.Code(err) == codes.OK {
		t.Error(err)
	}
}
