# `make up`, `make down`: the local stack of docker-compose.yml. Included by the Makefile, which sets up `.venv`.
# TORCH_INDEX=ADDRESS chooses the package index that the image's torch comes from (docs/operations.md).

COMPOSE ?= docker compose
STACK_KAFKA_PORT ?= 29092
STACK_REDIS_PORT ?= 16379
STACK_PROMETHEUS_PORT ?= 9090
export STACK_KAFKA_PORT STACK_REDIS_PORT STACK_PROMETHEUS_PORT

# The classic builder where buildx is not installed.
DOCKER_BUILDKIT ?= $(shell docker buildx version >/dev/null 2>&1 && echo 1 || echo 0)
export DOCKER_BUILDKIT

# The host's way into the stack, for `gradstream status` and the like.
ON_STACK = GRADSTREAM_CONFIG=ops/docker/gradstream.toml GRADSTREAM_OBSERVE__HTTP_HOST=127.0.0.1 \
	GRADSTREAM_KAFKA__BOOTSTRAP_SERVERS=localhost:$(STACK_KAFKA_PORT) \
	GRADSTREAM_REDIS__URL=redis://localhost:$(STACK_REDIS_PORT)/0

.PHONY: up down

up: .venv/ready ## start Kafka, Redis, a worker and Prometheus in containers, and send it events
	$(COMPOSE) up --build --detach
	.venv/bin/gradstream demo --to-stack --once
	@echo "metrics:    http://localhost:$(STACK_PROMETHEUS_PORT)"
	@echo "worker:     http://$$($(COMPOSE) port worker 9108)/metrics"
	@echo "its logs:   $(COMPOSE) logs -f worker"
	@echo "its state:  $(ON_STACK) .venv/bin/gradstream status" | tr -s '\t ' ' '

down: ## stop the stack and delete its data
	$(COMPOSE) --profile '*' down --volumes --remove-orphans --timeout 20
