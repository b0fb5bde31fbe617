package main

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/engine/local"
	"github.com/cleatproject/cleat/internal/cli"
)

func newPoolRebuildCommand() *cobra.Command {
	var f session
	var config local.Config
	var options local.RebuildOptions
	c := &cobra.Command{
		Use:   "rebuild",
		Short: "Make the lost records of the storage pool again from its files",
		Long: `Makes engine.db, the records of a pool, again from the files of its volumes and
snapshots and their extended attributes, when it is missing or damaged. Restore a
backup of engine.db instead if there is one: it knows more.

The driver must be stopped, and the pool mounted. The command deletes no file and
changes no content: the previous engine.db is renamed, and an unknown volume is not
taken as blank. It lists what it could not know, for example of volumes that an older
release created, and files without a record. Fences and grants are in another file,
grants.db in the state directory of the driver, and are not changed.

Exit code: 0 if everything was known, otherwise 1.`,
		Example: `  sudo cleat pool rebuild
  sudo cleat pool rebuild --pool /data/cleat --state-dir /var/lib/cleat/csi`,
	}
	// The environment cannot permit the replacement.
	c.Flags().BoolVar(&options.ReplaceReadable, "replace-readable", false, "also replace an engine.db that is not damaged")
	f.add(c.Flags(), func(fs *pflag.FlagSet) { addPoolFlags(fs, &config) })
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.bind(); err != nil {
			return err
		}
		return f.run(cmd, "rebuilding the records", func(ctx context.Context, _ func(string)) error {
			r, err := local.Rebuild(ctx, config, options)
			if err := f.printResult(cmd, rebuiltView(r), r, err); err != nil {
				return err
			}
			if !r.Complete() {
				return errors.New("the records are rebuilt, but not all was known; see the list")
			}
			return nil
		})
	}
	return c
}

func rebuiltView(r local.Rebuilt) cli.View {
	t := cli.Table{Header: []string{"KIND", "ID", "NAME", "UNKNOWN"}}
	for _, o := range r.Objects {
		t.Add(o.Kind, o.ID, o.Name, strings.Join(o.Unknown, "; "))
	}
	for _, i := range r.Ignored {
		t.Add("no record", i.Path, "", i.Reason)
	}
	if r.Aside == "" {
		return t
	}
	return cli.Views{t, cli.Textf("the previous engine.db is %s", r.Aside)}
}
