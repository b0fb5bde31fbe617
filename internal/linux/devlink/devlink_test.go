package devlink

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

// kernel answers as devlink's dump and do handlers: a dump ends at the first
// driver that fails, but for EOPNOTSUPP.
type kernel struct {
	t       *testing.T
	devices []double
	refuses map[uint8]error
	asked   int
}

type double struct {
	at      Handle
	info    []encoder
	infoErr error
	rdma    []encoder // values of enable_rdma; nil: no such parameter
	rdmaErr error

	steering string // value of flow_steering_mode; "": no such parameter
	refuses  error  // of a change
}

func (k *kernel) request(ctx context.Context, command uint8, flags netlink.HeaderFlags, encode func(*netlink.AttributeEncoder)) ([]*netlink.AttributeDecoder, error) {
	k.asked++
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := k.refuses[command]; err != nil {
		return nil, err
	}
	if flags&netlink.Dump == 0 {
		return k.single(command, decoder(k.t, encode))
	}
	var answers []*netlink.AttributeDecoder
	for _, d := range k.devices {
		a, err := k.answer(command, d)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return nil, err
		}
		answers = append(answers, a...)
	}
	return answers, nil
}

func (k *kernel) single(command uint8, request *netlink.AttributeDecoder) ([]*netlink.AttributeDecoder, error) {
	name, value := "", ""
	kind, mode := uint8(0), uint8(0xff)
	h := testkit.Value(parseAttributes(request, func() {
		switch request.Type() {
		case unix.DEVLINK_ATTR_PARAM_NAME:
			name = request.String()
		case unix.DEVLINK_ATTR_PARAM_TYPE:
			kind = request.Uint8()
		case unix.DEVLINK_ATTR_PARAM_VALUE_CMODE:
			mode = request.Uint8()
		case unix.DEVLINK_ATTR_PARAM_VALUE_DATA:
			value = request.String()
		}
	}))(k.t)
	if command == unix.DEVLINK_CMD_PARAM_GET && name != "enable_rdma" {
		return nil, unix.EINVAL
	}
	for n, d := range k.devices {
		switch {
		case d.at == h && command == unix.DEVLINK_CMD_PARAM_SET:
			if d.steering == "" || name != "flow_steering_mode" || kind != 5 || mode != 0 {
				return nil, unix.EINVAL
			}
			if d.refuses == nil {
				k.devices[n].steering = value
			}
			return nil, d.refuses
		case d.at == h:
			answers, err := k.answer(command, d)
			if command == unix.DEVLINK_CMD_PARAM_GET && err == nil && d.rdma == nil {
				err = unix.EINVAL
			}
			if err != nil {
				return nil, err
			}
			return answers, nil
		}
	}
	return nil, unix.ENODEV
}

func (k *kernel) answer(command uint8, d double) ([]*netlink.AttributeDecoder, error) {
	parts := []encoder{handle(d.at)}
	switch command {
	case unix.DEVLINK_CMD_GET:
	case unix.DEVLINK_CMD_INFO_GET:
		if d.infoErr != nil {
			return nil, d.infoErr
		}
		parts = append(parts, d.info...)
	case unix.DEVLINK_CMD_PARAM_GET:
		if d.rdmaErr != nil || d.rdma == nil {
			return nil, d.rdmaErr
		}
		other := decoder(k.t, handle(d.at), parameter("enable_roce", 6, value(1, yes)))
		return []*netlink.AttributeDecoder{other, decoder(k.t, append(parts, parameter("enable_rdma", 6, d.rdma...))...)}, nil
	default:
		k.t.Fatalf("command %d", command)
	}
	return []*netlink.AttributeDecoder{decoder(k.t, parts...)}, nil
}

func profiled(address, profile string) double {
	return double{at: Handle{"pci", address}, info: []encoder{version(101, "fw.mgmt", "7.3"), version(101, "fw.app.name", profile)}}
}

func rdma(bus, name string) double {
	return double{at: Handle{bus, name}, infoErr: unix.EOPNOTSUPP, rdma: []encoder{value(1, yes)}}
}

func TestRead(t *testing.T) {
	broken := double{at: Handle{"pci", "0000:10:00.0"}, infoErr: unix.EIO, rdmaErr: unix.EBUSY}
	whole := []double{
		profiled("0000:3b:00.0", "COMMS"), profiled("0000:3c:00.0", ""), rdma("pci", "0000:5e:00.2"), rdma("auxiliary", "mlx5_core.sf.4"),
		{at: Handle{"pci", "0000:5e:00.3"}, rdma: []encoder{value(1)}}, {at: Handle{"netdevsim", "netdevsim1"}},
		{at: Handle{"pci", "0000:60:00.0"}, info: []encoder{version(101, "fw.app.name", "both")}, rdma: []encoder{value(0, yes)}},
	}
	all := map[Handle]Device{
		{"pci", "0000:3b:00.0"}: {Profile: "COMMS"}, {"pci", "0000:5e:00.2"}: {RDMA: true},
		{"auxiliary", "mlx5_core.sf.4"}: {RDMA: true}, {"pci", "0000:60:00.0"}: {Profile: "both", RDMA: true},
	}
	none := map[Handle]Device{}
	for name, c := range map[string]struct {
		k     kernel
		want  map[Handle]Device
		says  []string // of the error; nil: no error
		asked int
	}{
		"no device":       {kernel{}, none, nil, 2},
		"two requests":    {kernel{devices: whole}, all, nil, 2},
		"not allowed":     {kernel{devices: whole, refuses: map[uint8]error{unix.DEVLINK_CMD_INFO_GET: unix.EPERM, unix.DEVLINK_CMD_PARAM_GET: unix.EACCES}}, none, nil, 2},
		"not in a kernel": {kernel{devices: whole, refuses: map[uint8]error{unix.DEVLINK_CMD_PARAM_GET: unix.EOPNOTSUPP}}, map[Handle]Device{{"pci", "0000:3b:00.0"}: {Profile: "COMMS"}, {"pci", "0000:60:00.0"}: {Profile: "both"}}, nil, 2},
		"a driver fails": {kernel{devices: append([]double{broken, {at: Handle{"pci", "0000:11:00.0"}, infoErr: unix.EIO}}, whole...)}, all,
			[]string{"versions", "pci/0000:10:00.0: ", "input/output error", "parameters", "busy"}, 4 + 2*(2+len(whole))},
		"no list then": {kernel{devices: []double{broken}, refuses: map[uint8]error{unix.DEVLINK_CMD_GET: unix.ENOBUFS}}, none, []string{"versions", "no buffer space", "parameters"}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			c.k.t = t
			got, err := read(t.Context(), c.k.request)
			testkit.Diff(t, "result", c.want, got)
			if c.says == nil {
				testkit.Must(t, err)
			} else {
				testkit.WantError(t, "read", err, nil, c.says...)
			}
			if err != nil && strings.Contains(err.Error(), "0000:11") {
				t.Errorf("the same error is reported for each device: %v", err)
			}
			if c.k.asked != c.asked {
				t.Errorf("asked %d times, want %d", c.k.asked, c.asked)
			}
		})
	}
}

func TestSetTextParameter(t *testing.T) {
	at := Handle{"pci", "0000:5e:00.0"}
	for name, c := range map[string]struct {
		device double
		to     Handle
		want   error
	}{
		"set":          {double{at: at, steering: "dmfs"}, at, nil},
		"refused":      {double{at: at, steering: "dmfs", refuses: unix.EOPNOTSUPP}, at, unix.EOPNOTSUPP},
		"no parameter": {double{at: at}, at, unix.EINVAL},
		"no device":    {double{at: at, steering: "dmfs"}, Handle{"pci", "0000:5e:00.1"}, unix.ENODEV},
	} {
		k := &kernel{t: t, devices: []double{{at: Handle{"pci", "0000:5d:00.0"}, steering: "dmfs"}, c.device}}
		err := setTextParameter(t.Context(), k.request, c.to, "flow_steering_mode", "smfs")
		if !errors.Is(err, c.want) || (k.devices[1].steering == "smfs") != (c.want == nil) || k.devices[0].steering != "dmfs" {
			t.Errorf("%s: %v, want %v; %+v", name, err, c.want, k.devices)
		}
	}
	if err := SetTextParameter(t.Context(), Handle{"pci", "ffff:ff:1f.7"}, "flow_steering_mode", "smfs"); err == nil {
		t.Error("set a parameter of no device")
	}
	testkit.WantError(t, "canceled", SetTextParameter(testkit.Canceled(t), at, "flow_steering_mode", "smfs"), context.Canceled)
}

func TestReadEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	k := &kernel{t: t}
	for i := range 100 {
		k.devices = append(k.devices, double{at: Handle{"pci", fmt.Sprintf("%04x:00:00.0", i)}, infoErr: unix.EIO})
	}
	_, err := read(ctx, func(ctx context.Context, command uint8, flags netlink.HeaderFlags, encode func(*netlink.AttributeEncoder)) ([]*netlink.AttributeDecoder, error) {
		if k.asked == 10 {
			cancel(nil)
		}
		return k.request(ctx, command, flags, encode)
	})
	if !errors.Is(err, context.Canceled) || k.asked > 12 {
		t.Errorf("%v after %d requests", err, k.asked)
	}
}

// A kernel without devlink or its devices reports nothing.
func TestKernel(t *testing.T) {
	devices := testkit.Value(Kernel{}.Devices(t.Context()))(t)
	for h, d := range devices {
		if h.Bus == "" || h.Name == "" || d == (Device{}) {
			t.Errorf("%+v: %+v", h, d)
		}
	}
	ctx := testkit.Canceled(t)
	if _, err := (Kernel{}).Devices(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

var (
	before = map[Handle]Device{pf: {Profile: "COMMS", RDMA: true}}
	after  = map[Handle]Device{pf: {Profile: "OS Default"}}
)

// With a driver that hangs, one caller waits until its deadline, and one goroutine hangs.
func TestRecentWhileADriverHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		hangs := make(chan struct{})
		r := &Recent{Ask: func(ctx context.Context) (map[Handle]Device, error) {
			if asked.Add(1) == 1 {
				return before, nil
			}
			<-hangs // ignores its context
			return after, ctx.Err()
		}}
		devices := func(wait time.Duration) (map[Handle]Device, time.Duration, error) {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			d, err := r.Devices(ctx)
			return d, time.Since(began), err
		}
		if d, _, err := devices(time.Second); err != nil || !cmp.Equal(d, before) {
			t.Fatalf("%v, %v", d, err)
		}
		for i, want := range []time.Duration{time.Second, 0, 0} {
			d, took, err := devices(time.Second)
			if !errors.Is(err, ErrLate) || !cmp.Equal(d, before) || took != want {
				t.Errorf("call %d: %v, %v after %s, want the last answer after %s", i, d, err, took, want)
			}
		}
		close(hangs)
		synctest.Wait()
		if d, _, err := devices(time.Second); err != nil || !cmp.Equal(d, after) || asked.Load() != 3 {
			t.Errorf("after it continued: %v, %v, asked %d times, want 3", d, err, asked.Load())
		}
	})
}

// Concurrent callers share one request; a canceled caller does not disturb others.
func TestRecentTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		answer := make(chan struct{})
		r := &Recent{Ask: func(ctx context.Context) (map[Handle]Device, error) {
			asked.Add(1)
			<-answer
			return before, ctx.Err()
		}}
		leaves, leave := context.WithCancel(t.Context())
		left, stayed := make(chan error, 1), make(chan error, 3)
		go func() { _, err := r.Devices(leaves); left <- err }()
		synctest.Wait()
		for range 3 {
			go func() {
				d, err := r.Devices(t.Context())
				if !cmp.Equal(d, before) {
					t.Errorf("got %v", d)
				}
				stayed <- err
			}()
		}
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("the canceled caller: %v", err)
		}
		synctest.Wait()
		close(answer)
		for range 3 {
			if err := <-stayed; err != nil {
				t.Error(err)
			}
		}
		if asked.Load() != 1 {
			t.Errorf("asked %d times", asked.Load())
		}
		if _, err := r.Devices(leaves); !errors.Is(err, context.Canceled) || asked.Load() != 1 {
			t.Errorf("canceled context: %v", err)
		}
	})
}

// The last report of a driver that fails is kept; those of others are replaced.
func TestRecentAfterFailures(t *testing.T) {
	other, broken := Handle{"pci", "0000:5e:00.2"}, errors.New("busy")
	answers := []struct {
		devices map[Handle]Device
		err     error
		want    map[Handle]Device
	}{
		{nil, broken, map[Handle]Device{}},
		{before, nil, before},
		{map[Handle]Device{other: {RDMA: true}}, broken, map[Handle]Device{pf: before[pf], other: {RDMA: true}}},
		{after, broken, map[Handle]Device{pf: {Profile: "OS Default", RDMA: true}, other: {RDMA: true}}},
		{after, nil, after},
		{nil, nil, nil},
	}
	next := 0
	r := &Recent{Ask: func(context.Context) (map[Handle]Device, error) {
		next++
		return answers[next-1].devices, answers[next-1].err
	}}
	for i, a := range answers {
		got, err := r.Devices(t.Context())
		if diff := cmp.Diff(a.want, got); diff != "" || !errors.Is(err, a.err) {
			t.Errorf("answer %d: %s %v", i, diff, err)
		}
	}
	if !cmp.Equal(before, map[Handle]Device{pf: {Profile: "COMMS", RDMA: true}}) {
		t.Error("an answer was modified")
	}
}

func TestRecentOfTheKernel(t *testing.T) {
	testkit.Value(new(Recent).Devices(t.Context()))(t)
}
