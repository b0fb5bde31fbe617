package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
)

// Namespace finds the bdev of a controller that matches a choice. It waits up
// to NamespaceWait. attached are the bdevs of a preceding attach.
// errs.Precondition: no bdev matches, or several do.
func (m *Manager) Namespace(ctx context.Context, controller string, c plan.Choice, attached []string) (string, plan.Choice, error) {
	var found spdk.Bdev
	var err error
	switch {
	case c.NSID != 0:
		found, err = m.await(ctx, bdevName(controller, c.NSID))
	case c.UUID != "" || c.NGUID != "":
		found, err = m.byUUID(ctx, controller, c)
	case len(attached) == 1: // listing all is slow with thousands
		found, err = m.config.RPC.Bdev(ctx, attached[0])
	default:
		found, err = m.only(ctx, controller)
	}
	if errors.Is(err, spdk.NotFound) {
		return "", plan.Choice{}, m.noNamespace(ctx, controller, c)
	}
	if err != nil {
		return "", plan.Choice{}, err
	}
	if why := differs(found, c); why != "" {
		return "", plan.Choice{}, errs.Errorf(errs.Precondition, "bdev %s %s: the context identifies another namespace", found.Name, why)
	}
	return found.Name, identity(controller, found), nil
}

func bdevName(controller string, nsid uint32) string {
	return controller + "n" + strconv.FormatUint(uint64(nsid), 10)
}

func nsidOf(controller, bdev string) (uint32, bool) {
	digits, ok := strings.CutPrefix(bdev, controller+"n")
	id, err := strconv.ParseUint(digits, 10, 32)
	return uint32(id), ok && err == nil && bdevName(controller, uint32(id)) == bdev
}

func identity(controller string, b spdk.Bdev) plan.Choice {
	id, _ := nsidOf(controller, b.Name)
	return plan.Choice{NSID: id, UUID: strings.ToLower(b.UUID)}
}

// differs describes the difference. SPDK shows the NGUID as UUID of a namespace
// that has both.
func differs(b spdk.Bdev, c plan.Choice) string {
	uuid := strings.ToLower(b.UUID)
	digits := strings.ReplaceAll(uuid, "-", "")
	switch {
	case c.NGUID != "" && digits != c.NGUID:
		return fmt.Sprintf("has NGUID %s, not %s", digits, c.NGUID)
	case c.NGUID == "" && c.UUID != "" && uuid != c.UUID:
		return fmt.Sprintf("has UUID %s, not %s", uuid, c.UUID)
	}
	for _, p := range b.Driver.NVMe {
		if c.NSID != 0 && p.Namespace.ID != 0 && p.Namespace.ID != c.NSID {
			return fmt.Sprintf("is namespace %d, not %d", p.Namespace.ID, c.NSID)
		}
	}
	return ""
}

func (m *Manager) await(ctx context.Context, name string) (spdk.Bdev, error) {
	b, err := m.config.RPC.Bdev(ctx, name)
	if !errors.Is(err, spdk.NotFound) {
		return b, err
	}
	return m.config.RPC.AwaitBdev(ctx, name, m.config.NamespaceWait)
}

// byUUID finds a bdev of the controller: the target's own bdev in the same
// process can have the same alias.
func (m *Manager) byUUID(ctx context.Context, controller string, c plan.Choice) (spdk.Bdev, error) {
	uuid := c.UUID
	if c.NGUID != "" {
		n := c.NGUID
		uuid = strings.Join([]string{n[:8], n[8:12], n[12:16], n[16:20], n[20:]}, "-")
	}
	b, err := m.await(ctx, uuid)
	if err != nil {
		return b, err
	}
	if _, ok := nsidOf(controller, b.Name); ok {
		return b, nil
	}
	all, err := m.bdevsOf(ctx, controller)
	if err != nil {
		return spdk.Bdev{}, err
	}
	for _, b := range all {
		if differs(b, c) == "" {
			return b, nil
		}
	}
	return spdk.Bdev{}, spdk.NotFound
}

func (m *Manager) only(ctx context.Context, controller string) (spdk.Bdev, error) {
	all, err := m.bdevsOf(ctx, controller)
	if err == nil && len(all) == 0 {
		// Most namespaces have ID 1; others are found after the wait.
		if _, err = m.await(ctx, bdevName(controller, 1)); err != nil && !errors.Is(err, spdk.NotFound) {
			return spdk.Bdev{}, err
		}
		all, err = m.bdevsOf(ctx, controller)
	}
	switch {
	case err != nil:
		return spdk.Bdev{}, err
	case len(all) == 0:
		return spdk.Bdev{}, spdk.NotFound
	case len(all) > 1:
		return spdk.Bdev{}, errs.Errorf(errs.Precondition, "the subsystem has %d namespaces (%s): give nsId, uuid or nguid in the context", len(all), namespaces(controller, all))
	}
	return all[0], nil
}

func (m *Manager) bdevsOf(ctx context.Context, controller string) ([]spdk.Bdev, error) {
	all, err := m.config.RPC.Bdevs(ctx)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(b spdk.Bdev) bool { _, ok := nsidOf(controller, b.Name); return !ok })
	slices.SortFunc(all, func(a, b spdk.Bdev) int {
		x, _ := nsidOf(controller, a.Name)
		y, _ := nsidOf(controller, b.Name)
		return int(x) - int(y)
	})
	return all, nil
}

// namespaces lists at most eight bdevs.
func namespaces(controller string, all []spdk.Bdev) string {
	const most = 8
	var words []string
	for i, b := range all {
		if i == most {
			words = append(words, "...")
			break
		}
		id, _ := nsidOf(controller, b.Name)
		words = append(words, fmt.Sprintf("%d with UUID %s", id, b.UUID))
	}
	return strings.Join(words, ", ")
}

func (m *Manager) noNamespace(ctx context.Context, controller string, c plan.Choice) error {
	all, err := m.bdevsOf(ctx, controller)
	if err != nil {
		return err
	}
	var wanted []string
	if c.NSID != 0 {
		wanted = append(wanted, fmt.Sprintf("nsId %d", c.NSID))
	}
	for word, value := range map[string]string{"uuid": c.UUID, "nguid": c.NGUID} {
		if value != "" {
			wanted = append(wanted, word+" "+value)
		}
	}
	slices.Sort(wanted)
	what := "no namespace"
	if len(wanted) > 0 {
		what += " with " + strings.Join(wanted, ", ")
	}
	there := "no namespaces"
	if len(all) > 0 {
		there = namespaces(controller, all)
	}
	return errs.Errorf(errs.Precondition, "the subsystem has %s for this host after %s; it has %s", what, m.config.NamespaceWait, there)
}
