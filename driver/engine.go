package driver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume"
)

// Engine is a storage engine, and what its driver has to know before it is opened: a
// process with the node service alone opens no engine and needs no credentials of the
// storage, but announces the same as the controller. Name and Abilities are required.
type Engine struct {
	// Name is a value of --engine, and in the log, the status and GetPluginInfo.
	Name string
	// Flags declares the engine's own flags. Those of engines that are not selected
	// are refused.
	Flags func(fs *pflag.FlagSet)
	// Complete checks the flags and changes what it must of p.Deployment, which has
	// what the flags say. It is without side effects. What the driver derives from the
	// Deployment is checked after it.
	Complete func(p *Process) error
	// Abilities are announced by all processes. They are those of the Backend that
	// Open returns.
	Abilities func() csi.Abilities
	// Fences: the Backend has a Fencer. Without one, an engine with
	// Deployment.MultiNode serves no fencing.
	Fences bool
	// Describe names the storage in the log and in the status; nil: not named.
	Describe func() string
	// Open opens the engine for the controller service, and recovers what an earlier
	// process left incomplete. It calls p.UseState before it uses grants. nil: the
	// engine has only the node service.
	Open func(ctx context.Context, p *Process) (volume.Backend, error)
	// Node adds the attachers of the engine's volumes (c.Attachers, by protocol of their
	// locators), and the directories that no volume is mounted in or over (c.Private).
	Node func(ctx context.Context, p *Process, c *node.Config) error
}

func (e Engine) describe() string {
	if e.Describe == nil {
		return ""
	}
	return e.Describe()
}

// checkBackend refuses a backend that is not what the engine's other processes announce.
func (e Engine) checkBackend(b volume.Backend, d csi.Deployment) error {
	switch got, want := csi.AbilitiesOf(b), e.Abilities(); {
	case b.Engine == nil:
		return errs.Errorf(errs.Internal, "engine %s has no Backend.Engine", e.Name)
	case got != want:
		return errs.Errorf(errs.Internal, "engine %s announces %+v, but its backend has %+v: make Engine.Abilities those of the backend", e.Name, want, got)
	case (b.Fencer != nil) != e.Fences:
		return errs.Errorf(errs.Internal, "engine %s has Engine.Fences %t, but the Fencer of its backend says %t", e.Name, e.Fences, b.Fencer != nil)
	case b.MultiNode != d.MultiNode, b.SharedFS != d.SharedFS, (b.Granter != nil) != d.StorageGrants:
		return errs.Errorf(errs.Internal, "engine %s completes a deployment with MultiNode %t, SharedFS %q and StorageGrants %t, but its backend has MultiNode %t, SharedFS %q and a Granter: %t",
			e.Name, d.MultiNode, d.SharedFS, d.StorageGrants, b.MultiNode, b.SharedFS, b.Granter != nil)
	}
	return nil
}

// choice is an engine with its flags, so that those of other engines are refused.
type choice struct {
	Engine
	flags *pflag.FlagSet
}

func (d *driver) addEngines(fs *pflag.FlagSet) {
	for _, e := range d.program.Engines {
		c := choice{e, pflag.NewFlagSet(e.Name, pflag.ContinueOnError)}
		if e.Flags != nil {
			e.Flags(c.flags)
		}
		fs.AddFlagSet(c.flags) // without flags that an earlier engine has, too
		d.engines = append(d.engines, c)
	}
}

func (d *driver) engineNames() (names []string) {
	for _, e := range d.engines {
		names = append(names, e.Name)
	}
	return names
}

func (d *driver) selectEngine() error {
	i := slices.IndexFunc(d.engines, func(c choice) bool { return c.Name == d.engineName })
	if i < 0 {
		return fmt.Errorf("--engine %q is unknown: use one of %s", d.engineName, strings.Join(d.engineNames(), ", "))
	}
	selected := d.engines[i]
	d.engine = selected.Engine
	var err error
	for _, e := range d.engines {
		e.flags.VisitAll(func(f *pflag.Flag) {
			if !f.Changed || selected.flags.Lookup(f.Name) != nil {
				return
			}
			err = fmt.Errorf("--%s is a setting of engine %s, and this is engine %s: remove it, or set --engine %[2]s", f.Name, e.Name, d.engineName)
		})
	}
	return err
}
