package devlink

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// kernel answers as devlink's dump and do handlers: a dump ends at the first
// driver that fails, but for EOPNOTSUPP.
type kernel struct {
	t       *testing.T
	devices []double
	refuses map[uint8]error // whole commands
	asked   int
}

type double struct {
	at      Handle
	info    []encoder
	infoErr error
	rdma    []encoder // values of enable_rdma; nil is no such parameter
	rdmaErr error
}

func (k *kernel) ask(ctx context.Context, command uint8, flags netlink.HeaderFlags, encode func(*netlink.AttributeEncoder)) ([]*netlink.AttributeDecoder, error) {
	k.asked++
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := k.refuses[command]; err != nil {
		return nil, fail(err)
	}
	if flags&netlink.Dump == 0 {
		return k.single(command, decoder(k.t, encode))
	}
	var answers []*netlink.AttributeDecoder
	for _, d := range k.devices {
		a, err := k.answer(command, d)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return nil, fail(err)
		}
		answers = append(answers, a...)
	}
	return answers, nil
}

func fail(err error) error { return &netlink.OpError{Op: "receive", Err: err} }

func (k *kernel) single(command uint8, request *netlink.AttributeDecoder) ([]*netlink.AttributeDecoder, error) {
	name := ""
	h, err := parseAttributes(request, func() {
		if request.Type() == unix.DEVLINK_ATTR_PARAM_NAME {
			name = request.String()
		}
	})
	if err != nil {
		k.t.Fatal(err)
	}
	if command == unix.DEVLINK_CMD_PARAM_GET && name != "enable_rdma" {
		return nil, fail(unix.EINVAL)
	}
	for _, d := range k.devices {
		if d.at == h {
			answers, err := k.answer(command, d)
			if command == unix.DEVLINK_CMD_PARAM_GET && err == nil && d.rdma == nil {
				err = unix.EINVAL
			}
			if err != nil {
				return nil, fail(err)
			}
			return answers, nil
		}
	}
	return nil, fail(unix.ENODEV)
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
		says  []string // of the error; none is no error
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
			got, err := read(t.Context(), c.k.ask)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if (err != nil) != (c.says != nil) {
				t.Fatal(err)
			}
			for _, word := range c.says {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not say %q", err, word)
				}
			}
			if err != nil && strings.Contains(err.Error(), "0000:11") {
				t.Errorf("the same failure is told of each device: %v", err)
			}
			if c.k.asked != c.asked {
				t.Errorf("asked %d times, want %d", c.k.asked, c.asked)
			}
		})
	}
}

// A context that ends stops the asking of each.
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
		return k.ask(ctx, command, flags, encode)
	})
	if !errors.Is(err, context.Canceled) || k.asked > 12 {
		t.Errorf("%v after %d requests", err, k.asked)
	}
}

// Whatever this machine has, it is no error to ask. Kernels without devlink, and
// those without a device of it, say nothing.
func TestKernel(t *testing.T) {
	devices, err := Kernel{}.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for h, d := range devices {
		if h.Bus == "" || h.Name == "" || d == (Device{}) {
			t.Errorf("%+v: %+v", h, d)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Kernel{}).Devices(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
