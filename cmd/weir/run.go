package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/listener/pressure"
)

func newRunCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "run -c FILE",
		Short: "Serve a configuration",
		Long: `Serve the configuration in FILE until SIGTERM or Ctrl-C. In a Pod the file may
be left out: the cluster's Ingresses are then served on ports 80 and 443.

  SIGHUP   loads the file again and opens the access log anew; so does a change
           of the file. A file with errors changes nothing.
  SIGTERM  drains: the health port says 503 at once, connections are still taken
           for drain.lame_duck, then what runs may take drain.timeout to end.
           A second SIGTERM ends at once.

The exit status is 0 unless something that ran had to be cut off.`,
		Example: "  weir run -c /etc/weir/weir.yaml\n  weir run -c - < weir.yaml",
		Args:    cobra.NoArgs,
		PreRunE: requireFile,
		RunE:    func(*cobra.Command, []string) error { return run(path) },
	}
	cmd.Flags().StringVarP(&path, "config", "c", "", "configuration file; - is standard input")
	return cmd
}

// requireFile makes the flag a required one where there is no cluster to serve instead.
func requireFile(c *cobra.Command, _ []string) error {
	if kube.InPod() {
		return nil
	}
	return c.MarkFlagRequired("config")
}

// load reads the file at path, or without a path what a Pod serves without one.
func load(path string) (*config.Config, error) {
	if path == "" {
		return withoutFile(os.LookupEnv)
	}
	return config.Load(path, os.LookupEnv)
}

func run(path string) error {
	cfg, err := load(path)
	if err != nil {
		return err
	}
	level := zap.NewAtomicLevel()
	setLevel(level, cfg.Log)
	log := newLog(cfg.Log, level)
	for _, w := range cfg.Warnings {
		log.Warn(w.Error())
	}
	signals := hearSignals()
	defer signal.Stop(signals)
	s := newServer(log, level)
	s.watchResources(pressure.LimitMemory(os.LookupEnv))
	s.path = path
	s.loading.Lock() // a file that changes meanwhile has to wait
	err = s.start(cfg)
	s.loading.Unlock()
	if err != nil {
		s.close()
		return fmt.Errorf("cannot start: %w", err)
	}
	log.Info("serving", zap.String("config", cmp.Or(path, builtIn)), zap.String("config_hash", cfg.Hash), zap.String("node", cfg.Node),
		zap.Int("listeners", len(cfg.Listeners)), zap.String("version", buildVersion()))
	return s.serve(signals)
}

// hearSignals is called before anything is bound: whoever finds the health port
// ready may signal at once, and unheard a SIGTERM ends the process without a drain.
func hearSignals() chan os.Signal {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT)
	return signals
}

// serve waits for signals and changed files until it is told to end.
func (s *server) serve(signals <-chan os.Signal) error {
	// Reloads have a goroutine of their own: one may wait for a cluster, and
	// nothing holds up the signal that ends weir.
	hangups := make(chan struct{}, 1) // one that waits stands for all that come meanwhile
	go func() {
		for range hangups {
			s.reopenLogs()
			s.reload("SIGHUP")
		}
	}()
	for sig := range signals {
		if sig != syscall.SIGHUP {
			break
		}
		wake(hangups)
	}
	close(hangups)
	s.endWatch()
	now := make(chan struct{})
	go func() {
		for sig := range signals {
			if sig != syscall.SIGHUP {
				s.log.Warn("told to end a second time: cutting what runs")
				close(now)
				return
			}
		}
	}()
	err := s.shutdown(now)
	if err == nil {
		s.log.Info("ended")
	}
	return err
}

// reload loads the file again and puts it into effect. With an error, which is
// logged and counted, everything stays as it was.
func (s *server) reload(because string) error {
	err := s.loadAndApply()
	s.metrics.reloaded(err)
	if err != nil {
		var problems config.Errors
		if errors.As(err, &problems) {
			for _, p := range problems {
				s.log.Error("configuration not loaded, the one before stays in effect", zap.String("because", because), zap.String("error", p.Error()))
			}
			return err
		}
		s.log.Error("configuration not loaded, the one before stays in effect", zap.String("because", because), zap.Error(err))
		return err
	}
	s.log.Info("configuration loaded", zap.String("because", because), zap.String("config_hash", s.config.Load().Hash))
	return nil
}

func (s *server) loadAndApply() error {
	s.loading.Lock() // or an older file could take effect after a newer one
	defer s.loading.Unlock()
	s.reloadCertificates()
	if s.path == "" || s.path == "-" {
		return errors.New("the configuration was not read from a file, so it cannot be read again; certificate files were")
	}
	cfg, err := config.Reload(s.path, os.LookupEnv, s.certs.InUse)
	if err != nil {
		return err
	}
	for _, w := range cfg.Warnings {
		s.log.Warn(w.Error())
	}
	if old := s.config.Load(); old != nil && old.Log.Format != cfg.Log.Format {
		s.log.Warn("log.format changes only by a restart")
	}
	return s.start(cfg)
}

// start watches the files of a configuration that was just loaded, and puts it
// into effect. The other way round, what changes meanwhile would go unnoticed.
func (s *server) start(cfg *config.Config) error {
	s.watch(cfg)
	return s.apply(cfg)
}

// watch looks after the file, and the certificates and keys that cfg names,
// instead of those that it looked after before.
func (s *server) watch(cfg *config.Config) {
	if s.path == "" {
		return
	}
	s.watchMu.Lock()
	defer s.watchMu.Unlock()
	if s.unwatched {
		return
	}
	w, err := config.NewWatch(s.path, cfg)
	if s.stopWatch != nil {
		s.stopWatch()
	}
	if err != nil {
		s.stopWatch = nil
		s.log.Error("changes of the configuration file are not noticed, only SIGHUP loads it", zap.Error(err))
		return
	}
	ctx, stop := context.WithCancel(s.ctx)
	s.stopWatch = stop
	go w.Run(ctx, s.filesChanged)
}

func (s *server) filesChanged() {
	if s.path != "-" {
		s.reload("a file changed")
		return
	}
	s.loading.Lock()
	defer s.loading.Unlock()
	s.reloadCertificates()
}

// endWatch ends the watch, for good.
func (s *server) endWatch() {
	s.watchMu.Lock()
	defer s.watchMu.Unlock()
	s.unwatched = true
	if s.stopWatch != nil {
		s.stopWatch()
	}
}

func wake(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

type watcher struct {
	loading   sync.Mutex // held while a configuration is loaded and applied
	watchMu   sync.Mutex
	stopWatch context.CancelFunc
	unwatched bool
}

func (s *server) reopenLogs() {
	if a := s.access.Load(); a != nil {
		if err := a.file.Reopen(); err != nil {
			s.log.Error("the access log goes on in the old file", zap.Error(err))
		}
	}
}
