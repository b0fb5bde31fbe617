// Package cli is the common part of all commands: flags, environment and file;
// sizes; output.
package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Sources of flag values besides the command line.
type Sources struct {
	// File is a YAML file with flag names as keys; "" means no file.
	File string
	// LookupEnv defaults to os.LookupEnv.
	LookupEnv func(string) (string, bool)
}

const (
	envPrefix       = "CLEAT_"
	aliasAnnotation = "cleat-env-alias"
)

// EnvName returns CLEAT_POOL_IMAGE for pool-image.
func EnvName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// EnvAlias adds variables of other specifications, such as CSI_ENDPOINT, to a
// flag, whose own variable has precedence.
func EnvAlias(fs *pflag.FlagSet, flag string, names ...string) error {
	if fs.Lookup(flag) == nil {
		return fmt.Errorf("flag --%s for environment variables %v not found", flag, names)
	}
	return fs.SetAnnotation(flag, aliasAnnotation, names)
}

// DescribeEnv adds the environment variables to the help. Call it once, after
// all flags are defined.
func DescribeEnv(fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		if bindable(f) {
			f.Usage += " (env " + strings.Join(envNames(f), ", ") + ")"
		}
	})
}

// Bind sets flags that the command line does not set from the environment, else
// from the file. Empty variables are ignored. Invalid values and unknown keys
// of the file are errors.
func Bind(fs *pflag.FlagSet, s Sources) error {
	if s.LookupEnv == nil {
		s.LookupEnv = os.LookupEnv
	}
	file, err := readFile(fs, s.File)
	if err != nil {
		return err
	}
	var all []error
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Changed || !bindable(f) {
			return
		}
		for _, name := range envNames(f) {
			if value, _ := s.LookupEnv(name); value != "" {
				if err := fs.Set(f.Name, value); err != nil {
					all = append(all, fmt.Errorf("environment variable %s: %w", name, err))
				}
				return
			}
		}
		if value, ok := file[f.Name]; ok {
			if err := set(fs, f, value); err != nil {
				all = append(all, fmt.Errorf("%s: key %q: %w", s.File, f.Name, err))
			}
		}
	})
	return errors.Join(all...)
}

func envNames(f *pflag.Flag) []string {
	return append([]string{EnvName(f.Name)}, f.Annotations[aliasAnnotation]...)
}

func bindable(f *pflag.Flag) bool {
	return !slices.Contains([]string{"help", "version"}, f.Name)
}
