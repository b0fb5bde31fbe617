package object

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/spdk"
)

// maxNamespaces is higher than SPDK's default of 128, which some targets
// exceed.
const maxNamespaces = 1024

// makeController attaches one path, and leaves the others to AttachMissing: a
// silent path must not delay devices that another path serves.
func (m *Manager) makeController(ctx context.Context, o plan.Object, attaching Attaching) (Outcome, error) {
	have, err := m.config.RPC.NVMeController(ctx, o.Name)
	if errors.Is(err, spdk.NotFound) {
		return m.attachNew(ctx, o, attaching)
	}
	if err == nil {
		err = m.checkOwn(ctx, have, *o.Controller)
	}
	return Outcome{Found: true, PathsMissing: len(missingPaths(have, *o.Controller)) > 0}, err
}

// attachNew attaches a controller, unless another program has attached the same
// subsystem. In that case SPDK releases differ: they refuse or, if the host NQN
// differs, attach without the namespaces that exist under the other name.
func (m *Manager) attachNew(ctx context.Context, o plan.Object, attaching Attaching) (Outcome, error) {
	out := Outcome{PathsMissing: len(o.Controller.Paths) > 1}
	var err error
	out.Bdevs, err = m.attachFirst(ctx, o, attaching)
	switch {
	case errors.Is(err, spdk.OtherName):
	case err != nil || len(out.Bdevs) > 0:
		return out, err
	}
	other, lookErr := m.findForeign(ctx, o)
	switch {
	case lookErr != nil:
		return Outcome{}, errors.Join(err, lookErr)
	case other.Name == "" && err != nil:
		return Outcome{}, errs.Errorf(errs.Precondition, "subsystem %s is already attached under another name, but no controller of SNAP uses one of the paths %s: check bdev_nvme_get_controllers: %w", o.Controller.SubNQN, o.Controller.Paths, err)
	case other.Name == "":
		return out, nil // its namespaces can appear later
	}
	if err == nil {
		if err := m.config.RPC.DetachNVMe(ctx, o.Name, nil); err != nil && !errors.Is(err, spdk.NotFound) {
			return Outcome{}, err
		}
	}
	return m.useForeign(ctx, other, *o.Controller)
}

// attachFirst attaches by the first path that works, and returns the bdevs that
// SNAP reports.
func (m *Manager) attachFirst(ctx context.Context, o plan.Object, attaching Attaching) (bdevs []string, err error) {
	var failed []error
	for _, path := range o.Controller.Paths {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		bdevs, err := m.attach(ctx, o, path, attaching)
		switch {
		case err == nil:
			if len(failed) > 0 {
				m.config.Logger.WarnContext(ctx, "some paths to subsystem not attached, will retry",
					"subsystem", o.Controller.SubNQN, "path", path, "err", errors.Join(failed...))
			}
			return bdevs, nil
		case errors.Is(err, spdk.OtherName), errors.Is(err, spdk.Unanswered), errors.Is(err, ErrNameConflict):
			return nil, fmt.Errorf("subsystem %s: %w", o.Controller.SubNQN, err)
		}
		failed = append(failed, fmt.Errorf("path %s: %w", path, err))
	}
	return nil, m.explainAttach(*o.Controller, errors.Join(failed...))
}

// explainAttach adds possible reasons, which SNAP does not report.
func (m *Manager) explainAttach(spec plan.ControllerSpec, err error) error {
	if errors.Is(err, spdk.Unreachable) {
		keys := ""
		switch {
		case spec.DHChap != "" && spec.TLS != "":
			keys = ", or refuses a DH-HMAC-CHAP or TLS key"
		case spec.DHChap != "":
			keys = ", or refuses the DH-HMAC-CHAP key"
		case spec.TLS != "":
			keys = ", or refuses the TLS key"
		}
		return errs.Errorf(errs.Unavailable, "attach subsystem %s as host %s: the target is down, has no such subsystem, or does not allow this host%s: %w", spec.SubNQN, spec.HostNQN, keys, err)
	}
	return fmt.Errorf("attach subsystem %s as host %s: %w", spec.SubNQN, spec.HostNQN, err)
}

// checkOwn checks the subsystem of a controller with this plugin's name, and
// resets a failed one.
func (m *Manager) checkOwn(ctx context.Context, have spdk.NVMeController, spec plan.ControllerSpec) error {
	for _, p := range have.Paths {
		if p.Address.SubNQN != spec.SubNQN || p.Host.NQN != "" && p.Host.NQN != spec.HostNQN {
			return errs.Errorf(errs.Precondition, "controller %s is attached to subsystem %s as host %s instead of subsystem %s as host %s: %w; detach it",
				have.Name, p.Address.SubNQN, p.Host.NQN, spec.SubNQN, spec.HostNQN, ErrNameConflict)
		}
	}
	if !allFailed(have) {
		return nil
	}
	m.config.Logger.WarnContext(ctx, "controller has failed, resetting it", "controller", have.Name, "subsystem", spec.SubNQN)
	if err := m.config.RPC.ResetNVMe(ctx, have.Name); err != nil {
		return errs.Errorf(errs.Unavailable, "reset failed controller %s of subsystem %s: %w", have.Name, spec.SubNQN, err)
	}
	return nil
}

func allFailed(c spdk.NVMeController) bool {
	for _, p := range c.Paths {
		if p.State != spdk.ControllerFailed {
			return false
		}
	}
	return len(c.Paths) > 0
}

func missingPaths(have spdk.NVMeController, spec plan.ControllerSpec) []netip.AddrPort {
	var missing []netip.AddrPort
	for _, want := range spec.Paths {
		if !slices.ContainsFunc(addresses(have), func(a netip.AddrPort) bool { return a == want }) {
			missing = append(missing, want)
		}
	}
	return missing
}

func addresses(c spdk.NVMeController) []netip.AddrPort {
	var all []netip.AddrPort
	for _, p := range c.Paths {
		addr, err := netip.ParseAddr(p.Address.Address)
		port, portErr := strconv.ParseUint(p.Address.Service, 10, 16)
		if err == nil && portErr == nil {
			all = append(all, netip.AddrPortFrom(addr, uint16(port)))
		}
	}
	return all
}

// attach attaches one path, and returns the controller's bdevs. Only Close of
// the plugin cancels the call, not ctx: SNAP executes it anyway, and the caller
// needs its result. The attach is on record.
func (m *Manager) attach(ctx context.Context, o plan.Object, path netip.AddrPort, attaching Attaching) (bdevs []string, err error) {
	caller := ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.config.AttachTimeout)
	defer cancel()
	defer context.AfterFunc(caller, func() {
		if errors.Is(context.Cause(caller), op.ErrClosed) {
			cancel()
		}
	})()
	call, err := m.attachCall(ctx, o, path)
	if err != nil {
		return nil, err
	}
	if attaching != nil {
		if err := attaching(ctx, path); err != nil {
			return nil, err
		}
	}
	for _, transport := range m.transports(ctx, o.Controller.Transport) {
		call.Transport = transport
		bdevs, err = m.config.RPC.AttachNVMe(ctx, call)
		if !errors.Is(err, spdk.NoTransport) {
			m.knowTransport(o.Controller.Transport, transport)
			break
		}
	}
	if errors.Is(err, spdk.SamePath) { // attached concurrently, or by an unanswered call
		have, lookErr := m.config.RPC.NVMeController(ctx, o.Name)
		if lookErr == nil {
			lookErr = m.checkOwn(ctx, have, *o.Controller)
		}
		return nil, lookErr
	}
	return bdevs, err
}

func (m *Manager) attachCall(ctx context.Context, o plan.Object, path netip.AddrPort) (spdk.NVMeAttach, error) {
	spec := o.Controller
	loss, delay, fast := spec.Timeouts.Loss.N, spec.Timeouts.Delay.N, spec.Timeouts.FastFail.N
	call := spdk.NVMeAttach{
		Name:        o.Name,
		NVMeAddress: spdk.NVMeAddress{Family: family(path.Addr()), Address: path.Addr().String(), Service: strconv.Itoa(int(path.Port())), SubNQN: spec.SubNQN},
		HostNQN:     spec.HostNQN,
		LossTimeout: &loss, ReconnectDelay: &delay, FastIOFail: &fast,
		Multipath: "multipath", IOQueues: spec.IOQueues, HeaderDigest: spec.HeaderDigest, DataDigest: spec.DataDigest, MaxBdevs: maxNamespaces,
		DHCHAPKey: spec.DHChap, DHCHAPCtrlKey: spec.DHChapCtrlr, PSK: spec.TLS,
	}
	if spec.DHChap == "" && spec.TLS == "" {
		return call, nil
	}
	keyring, err := m.hasKeyring(ctx)
	switch {
	case err != nil:
		return call, err
	case keyring:
	case spec.DHChap != "":
		return call, errs.Errorf(errs.Precondition, "subsystem %s needs DH-HMAC-CHAP, which this SNAP process does not support: it has no method keyring_file_add_key", spec.SubNQN)
	default: // processes without a keyring take the path of the file
		if call.PSK, err = m.keyPath(spec.TLSFile); err != nil {
			return call, err
		}
	}
	return call, nil
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

func (m *Manager) transports(ctx context.Context, transport string) []string {
	if transport != "tcp" {
		return []string{strings.ToUpper(transport)}
	}
	if m.config.TCP != TCPAuto {
		return []string{string(m.config.TCP)}
	}
	m.mu.Lock()
	known := m.tcp
	if m.generation != m.config.RPC.Generation() {
		known = ""
	}
	m.mu.Unlock()
	if known != "" {
		return []string{known}
	}
	if methods, err := m.config.RPC.Methods(ctx); err == nil && isNVIDIA(methods) {
		return []string{string(TCPNVIDIA), string(TCPUpstream)}
	}
	return []string{string(TCPUpstream), string(TCPNVIDIA)}
}

// isNVIDIA reports whether the process has methods that only NVIDIA's have.
func isNVIDIA(m spdk.MethodSet) bool {
	return m.Has("fsdev_get_fsdevs") || m.Has("nvme_subsystem_list")
}

func (m *Manager) knowTransport(transport, name string) {
	if transport != "tcp" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tcp, m.generation = name, m.config.RPC.Generation()
}

// findForeign returns the controller that is attached to the subsystem under another
// name, or the zero value.
func (m *Manager) findForeign(ctx context.Context, o plan.Object) (spdk.NVMeController, error) {
	all, err := m.config.RPC.NVMeControllers(ctx)
	for _, c := range all {
		same := slices.ContainsFunc(c.Paths, func(p spdk.NVMeConnectedPath) bool { return p.Address.SubNQN == o.Controller.SubNQN })
		if same && c.Name != o.Name && len(missingPaths(c, *o.Controller)) < len(o.Controller.Paths) {
			return c, err
		}
	}
	return spdk.NVMeController{}, err
}

// useForeign uses another program's controller if it certainly has the requested
// settings.
func (m *Manager) useForeign(ctx context.Context, c spdk.NVMeController, spec plan.ControllerSpec) (Outcome, error) {
	host := c.Paths[0].Host.NQN
	switch {
	case plan.IsController(c.Name):
		return Outcome{}, errs.Errorf(errs.Precondition, "subsystem %s is already attached for other volumes as host %s, but this volume requests host %s: all volumes of a subsystem need the same hostNQN", spec.SubNQN, host, spec.HostNQN)
	case allFailed(c):
		return Outcome{}, errs.Errorf(errs.Precondition, "subsystem %s is attached as controller %s, which has failed and was not attached by this plugin: detach it with bdev_nvme_detach_controller", spec.SubNQN, c.Name)
	case spec.HostGiven && host != spec.HostNQN:
		return Outcome{}, errs.Errorf(errs.Precondition, "subsystem %s is attached as controller %s by host %s, not by this plugin, but the volume requests host %s: detach it with bdev_nvme_detach_controller", spec.SubNQN, c.Name, cmp.Or(host, "(unnamed)"), spec.HostNQN)
	case spec.DHChap != "" || spec.TLS != "":
		return Outcome{}, errs.Errorf(errs.Precondition, "subsystem %s is attached as controller %s, not by this plugin, so its keys are unknown: detach it with bdev_nvme_detach_controller", spec.SubNQN, c.Name)
	}
	m.config.Logger.WarnContext(ctx, "using controller attached by another program", "subsystem", spec.SubNQN, "controller", c.Name, "host", host)
	return Outcome{Foreign: true, ForeignName: c.Name}, nil
}

// Attached reports whether SNAP has a controller, and whether it has a path.
func (m *Manager) Attached(ctx context.Context, o plan.Object, path netip.AddrPort) (exists, hasPath bool, err error) {
	have, err := m.config.RPC.NVMeController(ctx, o.Name)
	if errors.Is(err, spdk.NotFound) {
		return false, false, nil
	}
	return err == nil, err == nil && slices.Contains(addresses(have), path), err
}

// AttachMissing attaches the missing paths, and stops at the first unanswered
// attach. It ignores a missing controller, for example after a restart of SNAP:
// CreateDevice attaches it then.
func (m *Manager) AttachMissing(ctx context.Context, o plan.Object, attaching Attaching) error {
	have, err := m.config.RPC.NVMeController(ctx, o.Name)
	if errors.Is(err, spdk.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	var failed []error
	for _, path := range missingPaths(have, *o.Controller) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		_, err := m.attach(ctx, o, path, attaching)
		if err != nil {
			failed = append(failed, fmt.Errorf("path %s: %w", path, err))
		}
		if errors.Is(err, spdk.Unanswered) {
			break
		}
	}
	return errors.Join(failed...)
}
