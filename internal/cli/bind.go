// Package cli has what all commands share: flags from the command line, the
// environment and a file; sizes; and output for users and for programs.
package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Sources are where the values of flags come from besides the command line.
type Sources struct {
	// File is the path of a YAML file with flag names as keys; "" is no file.
	File string
	// LookupEnv is os.LookupEnv when nil.
	LookupEnv func(string) (string, bool)
}

const (
	envPrefix = "CLEAT_"
	// aliasAnnotation keeps a flag's other environment names.
	aliasAnnotation = "cleat-env-alias"
)

// EnvName is the environment variable of a flag: CLEAT_POOL_IMAGE for
// pool-image.
func EnvName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// EnvAlias gives a flag further environment variables of other specifications, as
// CSI_ENDPOINT. The flag's own variable has precedence.
func EnvAlias(fs *pflag.FlagSet, flag string, names ...string) error {
	if fs.Lookup(flag) == nil {
		return fmt.Errorf("there is no flag --%s to be set by %v", flag, names)
	}
	return fs.SetAnnotation(flag, aliasAnnotation, names)
}

// DescribeEnv adds its environment variables to the help of every flag. Call it once, when all flags are defined.
func DescribeEnv(fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		if bindable(f) {
			f.Usage += " (env " + strings.Join(envNames(f), ", ") + ")"
		}
	})
}

// Bind sets the flags that the command line did not: from the environment, else
// from the file, else they keep their default. An empty variable is ignored. It
// fails on a value that does not fit its flag, and on an unknown key of the file.
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

// bindable leaves out flags that are not settings.
func bindable(f *pflag.Flag) bool {
	return !slices.Contains([]string{"help", "version"}, f.Name)
}
