// Command controlplane is one program that becomes etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, kubectl or kwok, by the name it is
// called under (or by its first argument).
//
// The components share nearly all their code, so one program of 150 MB takes
// the place of six of 60 to 130 MB each, and is linked once.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
	kwoksignals "sigs.k8s.io/kwok/pkg/utils/signals"
)

// components maps the name a program is called under to its entry point. Each
// entry point reads os.Args by itself and returns the exit code.
var components = map[string]func() int{
	"etcd":                    runEtcd,
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubectl":                 runKubectl,
	"kwok":                    runKwok,
}

func main() {
	name := strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe")
	run, known := components[name]
	if !known && len(os.Args) > 1 {
		if run, known = components[os.Args[1]]; known {
			os.Args = os.Args[1:]
		}
	}
	if !known {
		names := make([]string, 0, len(components))
		for component := range components {
			names = append(names, component)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "controlplane: call it under one of these names, or give one as the first argument: %s\n", strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(run())
}

func runEtcd() int {
	etcdmain.Main(os.Args)
	return 0
}

func runKubectl() int {
	logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
		return 1
	}
	return 0
}

func runKwok() int {
	// component-base has put a --version flag of its own on the shared flag
	// set, which clashes with kwok's.
	pflag.CommandLine = pflag.NewFlagSet(os.Args[0], pflag.ContinueOnError)

	flags := pflag.NewFlagSet("kwok", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}
	ctx, logger := kwoklog.InitFlags(kwoksignals.SetupSignalContext(), flags)
	ctx, err := kwokconfig.InitFlags(ctx, flags)
	if err != nil {
		logger.Error("reading the configuration", err)
		return 1
	}
	if err := execute(ctx, kwok.NewCommand(ctx), flags); err != nil {
		logger.Error("kwok ended", err)
		return 1
	}
	return 0
}

func execute(ctx context.Context, command *cobra.Command, flags *pflag.FlagSet) error {
	command.PersistentFlags().AddFlagSet(flags)
	return command.ExecuteContext(ctx)
}
